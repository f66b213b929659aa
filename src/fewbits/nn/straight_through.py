"""The products of a layer where a transform of torch.func, forward mode or create_graph differentiates them.

The functions that keep packed operands know one backward pass. Here each is made of operations that can be
differentiated again, in every mode: rounding as if it were the identity, products as they are. So the
gradient is that of the recipe, bit for bit, and further derivatives are those of its backward pass. Whatever
gradient comes back to a product is rounded as the recipe says; a tangent is not: no role stands for it.
"""

from __future__ import annotations

from collections.abc import Callable
from copy import copy
from functools import wraps
from typing import Any, NamedTuple

import torch
from torch.autograd import forward_ad
from torch.autograd.function import once_differentiable

from fewbits.errors import ArgumentError
from fewbits.kernels.ops.derivatives import unviewed
from fewbits.nn.layer_precision import LayerPrecision, Operand
from fewbits.nn.saved_activations import SavedActivation, Tensors


class Formulas(NamedTuple):
    """A product of two operands, and its gradients. Each takes what it rounds by."""

    forward: Callable[
        [torch.Tensor, torch.Tensor, LayerPrecision, LayerPrecision], torch.Tensor
    ]  # x, weight, precision of each
    of_x: Callable[
        [torch.Tensor, torch.Tensor, torch.Tensor, LayerPrecision], torch.Tensor
    ]  # gradient, x, weight
    of_weight: Callable[[torch.Tensor, torch.Tensor, torch.Tensor, LayerPrecision], torch.Tensor]


def transformed() -> bool:
    """Whether a transform of torch.func or forward mode is active: one backward pass is not enough then."""
    return torch._C._are_functorch_transforms_active() or forward_ad._current_level >= 0


def differentiable(operands: Callable[[Any], tuple[Any, Any, Formulas]]) -> Callable[[Any], Any]:
    """Make a backward pass that is computed by formulas where it is to be differentiated in its turn.

    Args:
        operands: gives, of a context, both operands as they entered the product, and its formulas. An operand
            whose gradient alone is asked for may be anything of its shape.
    """

    def decorate(backward: Callable[[Any, torch.Tensor], Any]) -> Callable[[Any, torch.Tensor], Any]:
        quick = once_differentiable(backward)

        @wraps(backward)
        def either(ctx: Any, gradient: torch.Tensor) -> Any:
            if not torch.is_grad_enabled() or torch.compiler.is_compiling():
                return quick(ctx, gradient)
            rest = (None,) * (len(ctx.needs_input_grad) - 2)
            return (*_gradients(ctx, gradient, *operands(ctx)), *rest)

        return either

    return decorate


def unpacked(saved: SavedActivation, tensors: Tensors) -> torch.Tensor:
    """Return an activation as it entered its product.

    Raises:
        ArgumentError: it was packed.
    """
    if saved.packed:
        raise ArgumentError(
            "create_graph=True through a prepared layer that packed its activations for one backward pass:"
            " prepare the model with pack_activations=False, or take torch.func for second derivatives, as in"
            " torch.func.hessian or grad of grad"
        )
    (x,) = tensors
    assert x is not None
    return x


def _gradients(ctx: Any, gradient: torch.Tensor, x: Any, weight: Any, of: Formulas) -> tuple[Any, Any]:
    precision = _as(_Straight, ctx.precision)
    of_x, of_weight = ctx.needs_input_grad[:2]
    return (
        of.of_x(gradient, x, weight, precision) if of_x else None,
        of.of_weight(gradient, x, weight, precision).to(weight.dtype) if of_weight else None,
    )


def product(
    x: torch.Tensor, weight: torch.Tensor, precision: LayerPrecision, formulas: Formulas
) -> torch.Tensor:
    """Return the product of two operands; it has all derivatives."""
    result: torch.Tensor = _Product.apply(x, weight, precision, formulas)  # type: ignore[no-untyped-call]  # torch gives apply no types
    return result


def rounded(x: torch.Tensor, precision: LayerPrecision, role: str, axis: int) -> torch.Tensor:
    """Return ``x`` as the operand ``role``; its derivative is that of x."""
    result: torch.Tensor = _Rounded.apply(x, precision, role, axis)  # type: ignore[no-untyped-call]  # torch gives apply no types
    return result


class _Straight(LayerPrecision):
    def round(self, role: str, x: torch.Tensor, axis: int) -> torch.Tensor:
        return rounded(x, self, role, axis)

    def operand(self, role: str, x: torch.Tensor, axis: int) -> Operand:
        target = self.format_of(role)
        return Operand(self.round(role, x, axis), None if target is None else target.format)


class _Exact(LayerPrecision):
    def round(self, role: str, x: torch.Tensor, axis: int) -> torch.Tensor:
        return x

    def operand(self, role: str, x: torch.Tensor, axis: int) -> Operand:
        return Operand(x, None)


def _as(kind: type[LayerPrecision], precision: LayerPrecision) -> LayerPrecision:
    other = copy(precision)
    other.__class__ = kind
    return other


class _Rounded(torch.autograd.Function):
    generate_vmap_rule = True

    @staticmethod
    def forward(x: torch.Tensor, precision: LayerPrecision, role: str, axis: int) -> torch.Tensor:
        result = LayerPrecision.round(precision, role, x, axis)
        return result.clone() if result is x else result

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        pass

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, None, None, None]:
        return gradient, None, None, None

    @staticmethod
    def jvp(ctx: Any, tangent: torch.Tensor, *_: None) -> torch.Tensor:
        return tangent.view_as(tangent)


class _Product(torch.autograd.Function):
    generate_vmap_rule = True

    @staticmethod
    def forward(
        x: torch.Tensor, weight: torch.Tensor, precision: LayerPrecision, formulas: Formulas
    ) -> torch.Tensor:
        return unviewed(formulas.forward(x, weight, precision, precision))

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        x, weight, ctx.precision, ctx.formulas = inputs
        ctx.save_for_backward(x, weight)
        ctx.save_for_forward(x, weight)

    @staticmethod
    def backward(
        ctx: Any, gradient: torch.Tensor
    ) -> tuple[torch.Tensor | None, torch.Tensor | None, None, None]:
        x, weight = ctx.saved_tensors
        return (*_gradients(ctx, gradient, x, weight, ctx.formulas), None, None)

    @staticmethod
    def jvp(ctx: Any, of_x: torch.Tensor | None, of_weight: torch.Tensor | None, *_: None) -> Any:
        x, weight = ctx.saved_tensors
        straight, exact = _as(_Straight, ctx.precision), _as(_Exact, ctx.precision)
        forward = ctx.formulas.forward
        left = None if of_x is None else forward(of_x, weight, exact, straight)
        right = None if of_weight is None else forward(x, of_weight, straight, exact)
        return right if left is None else left if right is None else left + right
