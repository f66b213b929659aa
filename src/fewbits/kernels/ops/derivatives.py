"""Derivatives of an operator in every mode: backward, forward, any order, and under torch.func.

torch.library.register_autograd supports only backward mode: forward mode would give zeros, and torch.func
would raise.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch._functorch.utils import enable_single_level_autograd_function
from torch.autograd.forward_ad import _set_fwd_grad_enabled
from torch.autograd.function import _SingleLevelFunction


def derive(
    library: torch.library.Library,
    name: str,
    tensors: int,
    backward: Callable[..., tuple[torch.Tensor | None, ...]],
    jvp: Callable[..., torch.Tensor | None],
    *,
    keeps: int | None = None,
) -> None:
    """Give the operator ``name`` of a library its derivatives.

    Args:
        library: which defines it, with one tensor as the result.
        name: of the operator.
        tensors: how many of its arguments, the first ones, are tensors.
        backward: from a context and the gradient of the result to those of these arguments.
        jvp: from a context and the tangents of these arguments, None where there is none, to the result's.
        keeps: both ask the context for these arguments from this one on, as ``saved_tensors``; None for none
            of them. What is left out may change in place afterwards, and nothing holds its memory. The
            context always has the shape of the first one, as ``shape``, and what follows them, as ``others``.
    """
    op = getattr(getattr(torch.ops, library.ns), name).default

    class Derived(_SingleLevelFunction):
        @staticmethod
        def forward(keys: torch._C.DispatchKeySet, *args: Any) -> torch.Tensor:
            # What lies below is torch.func's next level, which differentiates too, or the kernel itself.
            with torch._C._AutoDispatchBelowAutograd(), torch.enable_grad(), _set_fwd_grad_enabled(True):
                return apart(op.redispatch(keys & torch._C._after_autograd_keyset, *args))

        @staticmethod
        def setup_context(ctx: Any, inputs: tuple[Any, ...], output: torch.Tensor) -> None:
            ctx.shape, ctx.others = inputs[1].shape, inputs[tensors + 1 :]
            if keeps is not None:
                ctx.save_for_backward(*inputs[1 + keeps : tensors + 1])
                ctx.save_for_forward(*inputs[1 + keeps : tensors + 1])

        @staticmethod
        def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
            return (None, *backward(ctx, gradient), *(None,) * len(ctx.others))

        @staticmethod
        def jvp(ctx: Any, _: None, *tangents: Any) -> torch.Tensor | None:
            return jvp(ctx, *tangents[:tensors])

    Derived.__name__ = Derived.__qualname__ = name

    def differentiable(keys: torch._C.DispatchKeySet, *args: Any) -> torch.Tensor:
        with enable_single_level_autograd_function():  # torch.func has chosen the level already
            y: torch.Tensor = Derived.apply(keys, *args)  # type: ignore[attr-defined]  # of an untyped base class
            return y

    library.impl(name, differentiable, "Autograd", with_keyset=True)


def apart(y: torch.Tensor) -> torch.Tensor:
    """Return ``y``, if it is the view of what a kernel made on its way, as a tensor of its own."""
    return y if torch._C._functorch.is_functorch_wrapped_tensor(y) or not y._is_view() else unviewed(y)


def unviewed(y: torch.Tensor) -> torch.Tensor:
    """Return ``y`` as no view: autograd lets nobody change one in place that was made within a function."""
    own: torch.Tensor = torch.ops.aten._unsafe_view.default(y, y.shape)
    return own
