"""A wrapper that lets any optimizer train a sparse model: it applies the masks around each step."""

from __future__ import annotations

import inspect
from collections.abc import Callable, MutableMapping
from dataclasses import dataclass
from typing import Any, cast

import torch
from torch import nn

from fewbits.errors import ArgumentError
from fewbits.kernels.ops.sharding import gathered
from fewbits.sparsity.masks import keep_, partial_mask
from fewbits.sparsity.pruning import (
    DENSE,
    MASK,
    STEP,
    Sparsity,
    own_sparsity,
    sparse_parameters,
    sparse_root,
)
from fewbits.sparsity.schedules import Frozen, Gradual, Recomputed
from fewbits.sparsity.sharded import cut_like, local
from fewbits.tensor import NarrowTensor, quantize
from fewbits.typing import StateDict

_AMP = ("grad_scale", "found_inf")  # what torch.amp.GradScaler sets on an optimizer for one step
_UNKNOWN = 0, -2  # the number of the last step, and a version that its counter never had


class MaskedOptimizer(torch.optim.Optimizer):
    """Wraps an optimizer so that the weights of a sparse model stay sparse.

    Before each step gradients are masked; after it weights are, and every state of a weight's shape:
    momentum, second moments, master weights. What is masked thus has no gradient, no momentum and no decay.
    With :class:`Recomputed` the dense weights take the step, and the model gets them masked anew.

    Nothing outside the wrapper changes: the optimizer's class and ``step`` are as they were, its options and
    states are those of the wrapper, and whatever else it can do is called through it.

    Args:
        optimizer: of the model's parameters; one of this package or of torch.
        model: on which :func:`sparsify` was called, or what holds it, ``DistributedDataParallel`` or a
            compiled module; already sharded where ``fully_shard`` is used.

    Attributes:
        flip_rate: share of the entries of all masks that the last step changed.

    Raises:
        ArgumentError: the model is not sparse, the optimizer has none of its sparse parameters, its steps
            need a closure, as those of ``torch.optim.LBFGS``, or it packs gradients, which
            :class:`Recomputed` has to change.

    >>> from fewbits.sparsity import sparsify
    >>> model = nn.Linear(8, 8)
    >>> report = sparsify(model, "2:4")
    >>> optimizer = MaskedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9), model)
    >>> model(torch.ones(1, 8)).sum().backward()
    >>> optimizer.step()
    >>> int((model.weight != 0).sum())
    32
    """

    def __init__(self, optimizer: torch.optim.Optimizer, model: nn.Module) -> None:
        closure = inspect.signature(optimizer.step).parameters.get("closure")
        if closure is not None and closure.default is inspect.Parameter.empty:
            raise ArgumentError(
                f"a step of {type(optimizer).__name__} computes gradients several times, each of which would"
                " have to be masked; take an optimizer whose step needs no closure"
            )
        self.__setstate__({"optimizer": optimizer, "model": model})

    def __getstate__(self) -> dict[str, Any]:
        """Return what copies and pickles are made of."""
        return {"optimizer": self.optimizer, "model": self.model}

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Wrap an optimizer, or become a copy that wraps a copy."""
        super().__setstate__(state)  # hooks and profiling as torch has them
        self._flips: int | torch.Tensor = 0
        self._counted = _UNKNOWN
        self._root = sparse_root(self.model)
        self._sparsity = cast(Sparsity, own_sparsity(self._root))
        self._find_layers()

    @torch.no_grad()
    def _find_layers(self) -> None:
        """Collect the sparse parameters that the optimizer owns, and mask their states."""
        owned = {p for group in self.optimizer.param_groups for p in group["params"]}
        self._layers = [
            _Layer(module, name, axis, p)
            for module, name, axis in sparse_parameters(self.model)
            for p in [getattr(module, name)]
            if p in owned
        ]
        if not self._layers:
            raise ArgumentError(
                "the optimizer has no sparse parameter of this model; make it of model.parameters(), after"
                " sparsify and after fully_shard"
            )
        packed = getattr(getattr(self.optimizer, "recipe", None), "held_gradient", None)
        if isinstance(self._sparsity.schedule, Recomputed) and packed is not None:
            raise ArgumentError(
                f"gradients are packed in {packed}, and SR-STE has to change them; take the recipe with"
                " held_gradient=fp32, or another schedule"
            )
        for layer in self._layers:
            layer.cut_buffers()
        self._mask_all()

    @torch.no_grad()
    def step(  # type: ignore[override]  # torch overloads it; this is the union
        self, closure: Callable[[], float] | None = None
    ) -> float | None:
        """Update every parameter that has a gradient, and keep the masks.

        A step that a loss scaler skips is none for the schedule: one that counts steps, and has masks made
        at some of them, waits for a device to say so.

        Args:
            closure: computes the loss anew, with gradients, once; what it returns is returned.

        Raises:
            ArgumentError: the masks were taken out of the model.
        """
        self._check_masks()
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        lent = {name: self.__dict__[name] for name in _AMP if name in self.__dict__}
        for layer in self._layers:
            self._before(layer, lent.get("grad_scale"))
        for name, value in lent.items():
            setattr(self.optimizer, name, value)
        try:
            self.optimizer.step()
        except Exception:
            self._mask_all()
            raise
        finally:
            for name in lent:
                delattr(self.optimizer, name)
        self._after(lent.get("found_inf"))
        return loss

    def _check_masks(self) -> None:
        """Raise where the model has no masks any more, or others than those that were wrapped."""
        if own_sparsity(self._root) is not self._sparsity:
            raise ArgumentError(
                f"the masks of {type(self._root).__name__} were taken out, as by remove_masks; go on with"
                " optimizer.optimizer, or wrap it again after another sparsify"
            )

    def _before(self, layer: _Layer, scale: torch.Tensor | None) -> None:
        schedule, gradient = self._sparsity.schedule, layer.p.grad
        if isinstance(schedule, Recomputed):
            local(layer.p).copy_(layer.dense)
            if gradient is not None and schedule.decay:
                dropped = layer.dense.clone()
                keep_(dropped, ~layer.mask)
                if scale is not None and scale.device.type != "cpu":  # of a device nobody waits for it
                    dropped, scale = dropped * scale, None
                factor = schedule.decay * (1.0 if scale is None else float(scale))
                local(gradient).add_(dropped, alpha=factor)
        elif gradient is not None:
            keep_(local(gradient), layer.mask)

    def _after(self, overflow: torch.Tensor | None) -> None:
        schedule = self._sparsity.schedule
        self._flips = 0
        if isinstance(schedule, Recomputed):
            for layer in self._layers:
                layer.dense.copy_(local(layer.p))
        if not isinstance(schedule, Frozen):
            step = self._count_step(self._root.get_buffer(STEP), overflow)
            if step is not None and schedule.is_due(step):
                self._flips = sum(layer.take(self._new_mask(layer, step)) for layer in self._layers)
        self._mask_all()

    def _count_step(self, counter: torch.Tensor, overflow: torch.Tensor | None) -> int | None:
        """Return the number of this step, None of one that a loss scaler skips.

        A counter on a device is read only if someone else has set it. Where masks are made at every step no
        number is asked for, and whether the step counts is decided there.
        """
        schedule = self._sparsity.schedule
        always = isinstance(schedule, Recomputed) and schedule.every == 1
        if always and overflow is not None and overflow.device.type != "cpu":
            counter.add_(overflow.to(counter.device) == 0)
            self._counted = _UNKNOWN
            return 0
        if overflow is not None and bool(overflow):
            return None
        counter.add_(1)
        known, version = self._counted
        unchanged = counter.device.type != "cpu" and version + 1 == counter._version
        self._counted = known + 1 if unchanged else int(counter), counter._version
        return self._counted[0]

    @property
    def flip_rate(self) -> float:
        """The share of the masks' entries that the last step changed; the host waits for a device.

        Under ``fully_shard`` it is that of the whole masks, the same on every process.
        """
        self._check_masks()
        return float(self._flips) / sum(layer.p.numel() for layer in self._layers)  # of all shards

    def _new_mask(self, layer: _Layer, step: int) -> torch.Tensor:
        """Return the mask that a layer has after ``step`` steps."""
        schedule = self._sparsity.schedule
        w = gathered(layer.p)
        final = self._sparsity.mask(w, layer.axis)
        return partial_mask(w, final, schedule.share(step)) if isinstance(schedule, Gradual) else final

    def _mask_all(self) -> None:
        for layer in self._layers:
            self._mask(layer)

    def _mask(self, layer: _Layer) -> None:
        """Set masked weights to zero, and masked values of their states unless weights stay dense."""
        keep_(local(layer.p), layer.mask)
        if isinstance(self._sparsity.schedule, Recomputed):
            return
        state = self.optimizer.state.get(layer.p, {})
        for name, value in state.items():
            if isinstance(value, NarrowTensor):
                state[name] = _masked(value, layer.mask)
            elif isinstance(value, torch.Tensor) and value.shape == layer.p.shape:
                keep_(local(value), layer.mask)

    @property
    def param_groups(self) -> list[dict[str, object]]:  # type: ignore[override]  # an attribute there
        """The wrapped optimizer's groups of parameters, with their options."""
        groups: list[dict[str, object]] = self.optimizer.param_groups
        return groups

    @property
    def state(self) -> MutableMapping[torch.Tensor, dict[str, object]]:  # type: ignore[override]  # an attribute there
        """The wrapped optimizer's states."""
        state: MutableMapping[torch.Tensor, dict[str, object]] = self.optimizer.state
        return state

    @property
    def defaults(self) -> dict[str, object]:  # type: ignore[override]  # an attribute there
        """The wrapped optimizer's default options."""
        options: dict[str, object] = self.optimizer.defaults
        return options

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Drop all gradients."""
        self.optimizer.zero_grad(set_to_none)

    def add_param_group(self, param_group: dict[str, object]) -> None:
        """Add parameters with options of their own; sparse ones among them are masked from now on."""
        self._check_masks()
        self.optimizer.add_param_group(param_group)
        self._find_layers()

    def state_dict(self) -> StateDict:
        """Return the wrapped optimizer's state; masks are in that of the model."""
        state: StateDict = self.optimizer.state_dict()
        return state

    @torch.no_grad()
    def load_state_dict(self, state_dict: StateDict) -> None:
        """Take over a state, also that of an optimizer of the dense model: it is masked."""
        self._check_masks()
        self.optimizer.load_state_dict(state_dict)
        self._mask_all()

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") or name == "optimizer":
            raise AttributeError(name)
        return getattr(self.optimizer, name)


@dataclass(eq=False)
class _Layer:
    """One sparse parameter; its mask and its dense weights are buffers of the module."""

    module: nn.Module
    name: str
    axis: int
    p: nn.Parameter

    @property
    def mask(self) -> torch.Tensor:
        """The local shard of the mask."""
        return local(self.module.get_buffer(self.name + MASK))

    @property
    def dense(self) -> torch.Tensor:
        """The local shard of the weights before masking."""
        return local(self.module.get_buffer(self.name + DENSE))

    def cut_buffers(self) -> None:
        """Shard the buffers in the same way as the parameter."""
        for name in (self.name + MASK, self.name + DENSE):
            buffer = self.module._buffers.get(name)
            if buffer is not None:
                self.module._buffers[name] = cut_like(buffer, self.p)

    def take(self, new_mask: torch.Tensor) -> torch.Tensor:
        """Replace the mask, and return how many of its entries changed, of all shards, () int64 beside it."""
        old, new = self.module.get_buffer(self.name + MASK), cut_like(new_mask, self.p)
        flips = gathered((new != old).sum())
        local(old).copy_(local(new))
        return flips


def _masked(packed: NarrowTensor, mask: torch.Tensor) -> NarrowTensor:
    """Return a packed state with masked values set to zero; ``packed`` itself if they are zero already."""
    values = packed.dense()
    if values.shape != mask.shape:
        return packed
    dropped = ~mask
    if values.device.type == "cpu" and not bool(values[dropped].any()):
        return packed
    wanted = (torch.where(dropped, values, 0.0) != 0).any()  # on a device nobody waits for the answer
    keep_(values, mask)
    masked = quantize(values, packed.format, axis=packed.axis)
    if values.device.type == "cpu":
        return masked
    pairs = zip(masked.pieces, packed.pieces, strict=True)
    parts = tuple(None if a is None or b is None else torch.where(wanted, a, b) for a, b in pairs)
    return masked.remade(parts, masked.shape, masked.axis)
