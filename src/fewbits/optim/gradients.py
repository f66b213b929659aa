"""Gradients that wait packed for the step, so that no whole set of wide ones ever exists."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from weakref import WeakMethod

import torch
from torch import distributed
from torch.utils.weak import WeakTensorKeyDictionary

from fewbits.errors import ArgumentError
from fewbits.optim.stored import bytes_of, loaded, stored, torch_dtype
from fewbits.recipes import Cast

# Of each parameter that is watched: who hands its gradients over.
_HOOKS = WeakTensorKeyDictionary()


def release(p: torch.Tensor) -> None:
    """Leave the gradients of ``p`` where torch keeps them: no older optimizer takes them any more."""
    hook = _HOOKS.pop(p, None)  # type: ignore[no-untyped-call]  # torch's own
    if hook is not None:
        hook.remove()
        set_grad_dtype(p, p.dtype)


def set_grad_dtype(p: torch.Tensor, dtype: torch.dtype) -> bool:
    """Let the gradient of ``p`` be of a dtype, now and from now on; return whether this torch can do that."""
    if not hasattr(p, "grad_dtype"):  # an older torch, whose gradients are what their parameters are
        return p.dtype == dtype
    if p.grad_dtype != dtype:
        gradient, p.grad = p.grad, None
        p.grad_dtype = dtype
        p.grad = None if gradient is None else gradient.to(dtype)
    return True


@dataclass
class _Held:
    """A packed gradient and what its values are multiplied by: NaN where the gradient was not finite.

    So every format can say that a gradient overflowed, also one without NaN, and neither unscaling nor
    clipping rounds a second time.
    """

    packed: torch.Tensor
    factor: float = 1.0

    def values(self) -> torch.Tensor:
        return loaded(self.packed) * self.factor


class HeldGradients:
    """The gradients of some parameters in one format.

    Each moves here as soon as autograd has it, and ``p.grad`` is None again. A gradient beyond the largest
    value becomes infinity where the format has it, for a dynamic loss scale to see.
    """

    def __init__(self, how: Cast) -> None:
        self.how = how
        self._held: dict[torch.Tensor, _Held] = {}

    def watch(self, p: torch.Tensor) -> None:
        """Take the gradients of ``p`` from now on; what is in the format already stays in ``p.grad``."""
        if not p.is_floating_point() or p.dtype == torch_dtype(self.how):
            return
        frozen = not p.requires_grad
        p.requires_grad_(True)  # a hook asks for it, and stays when the layer is frozen, and when it thaws
        _HOOKS[p] = p.register_post_accumulate_grad_hook(  # type: ignore[no-untyped-call]  # torch's own
            _weak(self._take)
        )
        p.requires_grad_(not frozen)
        set_grad_dtype(p, torch.float32)  # FP16 has too little range for what a scale would bring back

    def get(self, p: torch.Tensor) -> torch.Tensor | None:
        """Return the float32 gradient of ``p``, or None."""
        held = self._held.get(p)
        return None if held is None else held.values()

    def multiply_(self, factor: float) -> None:
        """Multiply every gradient that is held."""
        for held in self._held.values():
            held.factor *= factor

    def all_finite(self) -> bool:
        """Whether no gradient that is held has an infinity or a NaN."""
        return all(bool(held.values().isfinite().all()) for held in self._held.values())

    def clear(self) -> None:
        """Drop them all."""
        self._held.clear()

    def __len__(self) -> int:
        return len(self._held)

    @property
    def nbytes(self) -> int:
        """Bytes of codes and scales."""
        return sum(bytes_of(held.packed) for held in self._held.values())

    @torch.no_grad()
    def _take(self, p: torch.Tensor) -> None:
        if p.grad is None:
            return
        if distributed.is_available() and distributed.is_initialized() and distributed.get_world_size() > 1:
            # DistributedDataParallel looks at p.grad after this hook: each process would go its own way.
            raise ArgumentError(
                f"gradients are packed in {self.how} before {distributed.get_world_size()} processes could"
                " average them; take the recipe with held_gradient=fp32"
            )
        total, earlier = p.grad.float(), self._held.get(p)
        p.grad = None
        if earlier is not None:
            total = total + earlier.values()
        if bool(total.isfinite().all()):
            self._held[p] = _Held(self._packed(total))
        else:
            self._held[p] = _Held(self._packed(torch.zeros_like(total)), torch.nan)

    def _packed(self, x: torch.Tensor) -> torch.Tensor:
        return stored(x, self.how, overflow=None)


def _weak(method: Callable[[torch.Tensor], None]) -> Callable[[torch.Tensor], None]:
    """Return a hook that does nothing once its optimizer is gone: parameters outlive optimizers."""
    reference = WeakMethod(method)

    def hook(p: torch.Tensor) -> None:
        there = reference()
        if there is not None:
            there(p)

    return hook
