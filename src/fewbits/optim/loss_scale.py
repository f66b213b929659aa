"""The loss scaler of a recipe: PyTorch's own, or one that adds static scales, floors and FP16 gradients."""

from __future__ import annotations

from typing import Any, cast

import torch

from fewbits.errors import ArgumentError
from fewbits.optim.optimizer import Optimizer
from fewbits.optim.packing import torch_dtype
from fewbits.recipes import LossScaling, Recipe
from fewbits.recipes import recipe as read
from fewbits.typing import StateDict


def scaler(recipe: str | Recipe) -> torch.amp.GradScaler:
    """Return the loss scaler of a recipe.

    Args:
        recipe: a recipe or its text.

    Returns:
        :class:`torch.amp.GradScaler` itself wherever it does what the recipe says, disabled for a recipe
        without scaling; else a :class:`LossScaler`. Either is used as in ``scaler.scale(loss).backward();
        scaler.step(optimizer); scaler.update()``.

    Raises:
        ArgumentError: no such recipe.

    >>> scaler("fp8-stochastic").get_scale()
    10000.0
    """
    chosen = read(recipe)
    if chosen.scaling is None:
        return torch.amp.GradScaler("cpu", enabled=False)
    # FP16 gradients lie in p.grad, where PyTorch's scaler refuses to unscale them before the step.
    fp16 = chosen.parameter is not None and torch_dtype(chosen.parameter) == torch.float16
    if chosen.scaling.dynamic and not chosen.scaling.floors and not fp16:
        return torch.amp.GradScaler("cpu", **_options(chosen.scaling))
    return LossScaler(chosen.scaling)


class LossScaler(torch.amp.GradScaler):
    """A loss scaler that unscales FP16 gradients, and whose scale may stay still or have a floor that rises.

    The floor keeps the scale from sinking under isolated overflows (enhanced loss scaling: Mellempudi et al.,
    Mixed Precision Training With 8-bit Floating Point, 2019, section 3.1).
    """

    def __init__(self, scaling: LossScaling) -> None:
        super().__init__("cpu", **_options(scaling))
        self.scaling = scaling
        self.steps = 0  # calls of update, skipped steps included

    def update(self, new_scale: float | torch.Tensor | None = None) -> None:
        """Choose the scale of the next step; call it once after each."""
        if new_scale is None and not self.scaling.dynamic and self._scale is not None:
            # The scale as it is, unread: it lies where the loss does, which is the device torch compares.
            new_scale, self._device = self._scale, self._scale.device.type
        super().update(new_scale)
        self.steps += 1
        floor = _floor(self.scaling, self.steps)
        if floor and self._scale is not None:
            self._scale.clamp_(min=floor)

    def state_dict(self) -> StateDict:
        """Return torch's state and the count of steps."""
        return {**super().state_dict(), "steps": self.steps}

    def load_state_dict(self, state_dict: StateDict) -> None:
        """Take over what :meth:`state_dict` returned.

        Raises:
            ArgumentError: the state is one of another scaler, as torch's, which counts no steps.
        """
        lacking = [key for key in self.state_dict() if key not in state_dict]
        if lacking:
            raise ArgumentError(
                f"the state of the loss scaler has no {lacking[0]!r}; expected one that"
                f" fewbits.optim.{type(self).__name__} saved: load it into the scaler of the recipe that it"
                " is of, or begin without it"
            )
        super().load_state_dict(state_dict)
        self.steps = cast(int, state_dict["steps"])

    def _unscale_grads_(
        self,
        optimizer: torch.optim.Optimizer,
        inv_scale: torch.Tensor,
        found_inf: torch.Tensor,
        allow_fp16: bool,
    ) -> dict[torch.device, torch.Tensor]:
        ours = getattr(optimizer, "optimizer", optimizer)  # the optimizer that a wrapper holds
        if isinstance(ours, Optimizer) and not allow_fp16:
            ours.widen_gradients()
            # Where torch is too old for wide gradients of FP16 parameters, what is FP16 still is packed.
            allow_fp16 = True
        return super()._unscale_grads_(optimizer, inv_scale, found_inf, allow_fp16)


def _floor(scaling: LossScaling, steps: int) -> float:
    return max((float(least) for start, least in scaling.floors if steps >= start), default=0.0)


def _options(scaling: LossScaling) -> dict[str, Any]:
    return {
        "init_scale": max(scaling.init_scale, _floor(scaling, 0)),
        "growth_factor": scaling.growth_factor,
        "backoff_factor": scaling.backoff_factor,
        "growth_interval": scaling.growth_interval,
    }
