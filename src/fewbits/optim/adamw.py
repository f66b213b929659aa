"""Adam with decoupled weight decay."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch.optim.optimizer import ParamsT

from fewbits.errors import ArgumentError
from fewbits.optim.optimizer import Optimizer, checked
from fewbits.optim.parameter_state import Options, ParameterState
from fewbits.recipes import Recipe


class AdamW(Optimizer):
    """AdamW (Loshchilov and Hutter, Decoupled Weight Decay Regularization, 2019, algorithm 2).

    With the recipe ``fp32`` it equals :class:`torch.optim.AdamW`. The second moment needs range: in an 8-bit
    format, or in FP16 without a scale for the tensor, small entries become zero and their updates explode
    (Peng et al., FP8-LM, 2023, section 2.2).

    Args:
        params: parameters, or groups of them with options of their own.
        lr: learning rate.
        betas: what is kept of the two moments at each step.
        eps: added to the root of the second moment.
        weight_decay: of the weights themselves, times the learning rate.
        recipe: a recipe or its text.

    Raises:
        ArgumentError: an option out of its range, or no such recipe.

    >>> w = torch.nn.Parameter(torch.ones(1000, dtype=torch.float16))
    >>> optimizer = AdamW([w], recipe="fp8-lm")
    >>> w.sum().backward()
    >>> optimizer.step()
    >>> round(optimizer.nbytes()["per_value"], 2)  # weight 2, gradient 1, moments 1 and 2
    6.0
    """

    moments = ("first_moment", "second_moment")

    def __init__(
        self,
        params: ParamsT,
        lr: float = 1e-3,
        *,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 1e-2,
        recipe: str | Recipe = "fp32",
    ) -> None:
        given: object = betas  # whatever a caller without types passes
        pair = tuple(given) if isinstance(given, Sequence) else given
        defaults = {"lr": lr, "betas": pair, "eps": eps, "weight_decay": weight_decay}
        super().__init__(params, defaults, recipe)

    def _check_ranges(self, options: Mapping[str, Any]) -> None:
        """Raise where an option is out of its range."""
        betas = options["betas"]
        if not isinstance(betas, Sequence) or len(betas) != 2:
            raise ArgumentError(f"betas={betas!r}; expected two numbers, of the first and the second moment")
        for i, beta in enumerate(betas):
            checked(f"betas[{i}]", beta, below=1.0)
        for name in ("lr", "eps", "weight_decay"):
            checked(name, options[name])

    def update(
        self, values: torch.Tensor, gradient: torch.Tensor, state: ParameterState, group: Options
    ) -> torch.Tensor:
        """Return the update that is added to ``values``; see :meth:`Optimizer.update`."""
        step = state["step"] = state.get("step", 0) + 1
        first, second = group["betas"]
        of_first, of_second = _weight(first, step), _weight(second, step)
        m = self.load(state, "first_moment", values).lerp_(gradient, 1 - first)
        v = (
            self.load(state, "second_moment", values)
            .mul_(second)
            .addcmul_(gradient, gradient, value=1 - second)
        )
        below = (v.sqrt() / of_second**0.5).add_(group["eps"])
        change = m.div(below).mul_(-group["lr"] / of_first)
        self.keep(state, "first_moment", m)
        self.keep(state, "second_moment", v)
        return change.sub_(values, alpha=group["lr"] * group["weight_decay"])


def _weight(beta: float, step: int | torch.Tensor) -> Any:
    """Return ``1 - beta^step``, what the steps so far weigh in a moment: a number, or () float32."""
    if isinstance(step, torch.Tensor):  # counted on a device: the difference in float32 would lose its bits
        return -torch.expm1(step * math.log(beta)) if beta else torch.ones_like(step)
    return 1 - beta**step
