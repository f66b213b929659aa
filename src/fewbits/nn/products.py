"""The products of a layer, forward and backward, each with operands rounded along the axis it sums over.

Rouhani et al., Microscaling Data Formats for Deep Learning, 2023, figure 2: rounding and transposing do not
commute, so every product rounds its operands anew from the tensors as they were before.
"""

from __future__ import annotations

import math
from typing import Any

import torch

from fewbits.errors import ArgumentError
from fewbits.kernels import ops
from fewbits.kernels.ops.derivatives import unviewed
from fewbits.kernels.ops.no_autocast import no_autocast
from fewbits.nn.layer_precision import LayerPrecision, Operand, goes_by_panels
from fewbits.nn.products_by_addition import product_by_addition
from fewbits.nn.saved_activations import SavedActivation, Tensors, save_activation, save_beside_forward
from fewbits.nn.straight_through import Formulas, differentiable, product, transformed, unpacked

# Asked once: torch.compile cannot look into the question.
_BFLOAT16_UNITS = bool(torch.cpu._is_avx512_bf16_supported() or torch.cpu._is_amx_tile_supported())


def multiply(
    a: Operand, b: Operand, precision: LayerPrecision, role: str = "", lower: str = ""
) -> torch.Tensor:
    """Return ``a @ b`` of operands of a recipe, summed in float32, in a's dtype.

    With u = 2^-24, float32 results are within (k + 2) u |a| |b| of the exact product; 16-bit ones are rounded
    once more. A gradient has a ``role``, for who watches what 16 bits make of it. ``lower`` names a matrix
    that is lower triangular, as :func:`fewbits.kernels.ops.rounded_product` takes it.
    """
    dtype = a.values.dtype
    if _by_panels(a, b, precision):
        right = b.values if b.format else b.values.to(dtype)
        wide = ops.rounded_product(
            *(a.values, right, (a.format, b.format), (a.choices, b.choices), dtype, (a.parts, b.parts)),
            lower=_with_zeros(lower, a, b),
        )
        return precision.to_flow(role, wide, dtype) if role else wide
    left, right = a.rounded(-1), b.rounded(-2)
    if precision.recipe.product == "add":
        wide = product_by_addition(left.float(), right.float())
    else:
        summed = sum_dtype(dtype)
        with no_autocast(left):
            # An operator, not torch.matmul: narrow_products must not see it, and round once more.
            wide = torch.ops.aten.matmul.default(left.to(summed), right.to(dtype).to(summed))
    return precision.to_flow(role, wide, dtype) if role else wide.to(dtype)


def _with_zeros(lower: str, a: Operand, b: Operand) -> str:
    """Return ``lower``, or nothing where its factor has a format in which a zero rounds to something else."""
    factor = b if lower == "right" else a
    keeps = lower == "result" or factor.format is None or factor.format.element.has_zero
    return lower if keeps else ""


def _by_panels(a: Operand, b: Operand, precision: LayerPrecision) -> bool:
    """Return whether the product is fewbits' own: of bfloat16, or of operands that are both narrow.

    Of matrices that do not meet torch says so, as it does for a layer of its own.
    """
    left, right = a.values, b.values
    if left.shape[:-2] != right.shape[:-2] or left.shape[-1] != right.shape[-2]:
        return False
    narrow = left.dtype == torch.bfloat16 or (a.format is not None and b.format is not None)
    ours = narrow and precision.recipe.product == "exact" and left.ndim >= 2
    return ours and all(map(goes_by_panels, (left, right)))


def sum_dtype(dtype: torch.dtype) -> torch.dtype:
    """Return the dtype in which operands of ``dtype`` are handed to torch, so that it sums in float32."""
    return dtype if dtype == torch.bfloat16 and _BFLOAT16_UNITS else torch.float32


def linear(
    x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, precision: LayerPrecision
) -> torch.Tensor:
    """Return ``x @ weight.T + bias`` with narrow operands in all three products.

    Args:
        x: (..., k).
        weight: (n, k).
        bias: (n,), or None.
        precision: what the operands are rounded to.

    Returns:
        (..., n) in the recipe's vector format.

    Raises:
        ArgumentError: x has no axes.
    """
    y: torch.Tensor
    if not x.ndim:
        raise ArgumentError(
            f"{precision.layer or 'the product'} was given a tensor without axes; expected"
            f" (..., {weight.shape[-1]})"
        )
    if transformed():
        y = product(precision.from_flow(x), weight, precision, _LINEAR)
    else:
        y = _Linear.apply(precision.from_flow(x), weight, precision, torch.is_grad_enabled())  # type: ignore[no-untyped-call]  # torch gives apply no types
    return y if bias is None else y + converted(bias, y.dtype)


def converted(p: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """Return ``p.to(dtype)`` with a gradient that goes back as it is, for parameters that take float32."""
    if p.dtype == dtype:
        return p
    if transformed():
        return p.to(dtype)
    result: torch.Tensor = _Converted.apply(p, dtype)  # type: ignore[no-untyped-call]  # torch gives apply no types
    return result


def viewed(p: torch.Tensor, precision: LayerPrecision) -> torch.Tensor:
    """Return a parameter to take views of: those of FP16 would flush the gradients that are packed later."""
    wide = precision.recipe.held_gradient is not None and p.dtype == torch.float16
    return converted(p, torch.float32) if wide else p


class _Converted(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, p: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
        return p.to(dtype)

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, None]:
        return gradient, None


def attention_product(
    a: torch.Tensor, b: torch.Tensor, precision: LayerPrecision, lower: str = ""
) -> torch.Tensor:
    """Return ``a @ b`` of activations, (..., m, k) and (..., k, n), with narrow operands in all products.

    Args:
        a: (..., m, k).
        b: (..., k, n).
        precision: what the operands are rounded to.
        lower: of causal attention, what is lower triangular. ``result``: scores, nobody looks beyond their
            diagonal, which may be zeros, and their gradient is zero there. ``left``: probabilities, which are
            zero there, so that nobody asks for their gradient.
    """
    if transformed():
        return product(precision.from_flow(a), precision.from_flow(b), precision, _ATTENTION)
    result: torch.Tensor = _Product.apply(
        precision.from_flow(a), precision.from_flow(b), precision, torch.is_grad_enabled(), lower
    )  # type: ignore[no-untyped-call]  # torch gives apply no types
    return result


def _of_linear(ctx: Any) -> tuple[Any, Any, Formulas]:
    weight, *saved = ctx.saved_tensors
    return unpacked(ctx.activation, saved) if saved else weight.new_empty(1).expand(ctx.size), weight, _LINEAR


class _Linear(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, x: torch.Tensor, weight: torch.Tensor, precision: LayerPrecision, graded: bool
    ) -> torch.Tensor:
        ctx.precision, ctx.size = precision, x.shape
        rows = _rows(x)
        saves = graded and ctx.needs_input_grad[1]
        both = save_beside_forward(x, rows.shape, precision) if saves else None
        saved: Tensors = ()
        if both is not None:
            a, ctx.activation, saved = both
        else:
            a = precision.operand("forward_activation", rows, 1)
        b = precision.operand("forward_weight", weight, 1)
        if saves and both is None:
            ctx.activation, saved = save_activation(x, "dw_activation", 0, rows.shape, precision)
        ctx.save_for_backward(weight, *saved)
        return unviewed(multiply(a, b.mT, precision).reshape(*x.shape[:-1], weight.shape[0]))

    @staticmethod
    @differentiable(_of_linear)
    def backward(
        ctx: Any, gradient: torch.Tensor
    ) -> tuple[torch.Tensor | None, torch.Tensor | None, None, None]:
        weight, *saved = ctx.saved_tensors
        precision: LayerPrecision = ctx.precision
        g = _rows(gradient)
        of_x = of_weight = along_rows = along_columns = None
        if all(ctx.needs_input_grad[:2]):
            both = precision.packed_both(g, ("dx_gradient", "dx_weight"), ("dw_gradient", "dw_activation"))
            along_rows, along_columns = both or (None, None)
        if ctx.needs_input_grad[0]:
            left = along_rows or precision.operand("dx_gradient", g, 1)
            right = precision.operand("dx_weight", weight, 0)
            of_x = multiply(left, right, precision, "input_gradient").reshape(ctx.size)
        if ctx.needs_input_grad[1]:
            left = (along_columns or precision.operand("dw_gradient", g, 0)).mT
            right = _saved(ctx.activation, saved)
            # Autograd makes it what the parameter takes.
            of_weight = multiply(left, right, precision, "weight_gradient")
        return of_x, of_weight, None, None


def _of_product(ctx: Any) -> tuple[Any, Any, Formulas]:
    saved = ctx.saved_tensors
    of_b, of_a = saved[: ctx.count], saved[ctx.count :]
    return unpacked(ctx.of_a, of_a) if of_a else None, unpacked(ctx.of_b, of_b) if of_b else None, _ATTENTION


# Of the product that has the key for lower triangular, what is so in the products of both gradients.
_LOWER_IN_GRADIENTS = {"": ("", ""), "result": ("left", "right"), "left": ("result", "left transposed")}


class _Product(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, a: torch.Tensor, b: torch.Tensor, precision: LayerPrecision, graded: bool, lower: str
    ) -> torch.Tensor:
        ctx.precision, ctx.lower = precision, lower
        left, right = (
            precision.operand("forward_activation", a, -1),
            precision.operand("forward_activation", b, -2),
        )
        saved: Tensors = ()
        if graded and ctx.needs_input_grad[0]:
            ctx.of_b, saved = save_activation(b, "dw_activation", b.dim() - 1, b.shape, precision)
        ctx.count = len(saved)
        if graded and ctx.needs_input_grad[1]:
            ctx.of_a, more = save_activation(a, "dw_activation", a.dim() - 2, a.shape, precision)
            saved += more
        ctx.save_for_backward(*saved)
        return unviewed(multiply(left, right, precision, lower=lower))

    @staticmethod
    @differentiable(_of_product)
    def backward(
        ctx: Any, gradient: torch.Tensor
    ) -> tuple[torch.Tensor | None, torch.Tensor | None, None, None, None]:
        saved = ctx.saved_tensors
        precision: LayerPrecision = ctx.precision
        in_of_a, in_of_b = _LOWER_IN_GRADIENTS[ctx.lower]
        of_a = of_b = None
        if ctx.needs_input_grad[0]:
            left = precision.operand("dx_gradient", gradient, -1)
            right = _saved(ctx.of_b, saved[: ctx.count]).mT
            of_a = multiply(left, right, precision, "input_gradient", in_of_a)
        if ctx.needs_input_grad[1]:
            left = _saved(ctx.of_a, saved[ctx.count :]).mT
            right = precision.operand("dw_gradient", gradient, -2)
            of_b = multiply(left, right, precision, "input_gradient", in_of_b)
        return of_a, of_b, None, None, None


def _saved(activation: SavedActivation, tensors: Tensors) -> Operand:
    target = activation.target
    return Operand(activation.operand(tensors), None if target is None else target.format)


def _rows(x: torch.Tensor) -> torch.Tensor:
    return x.reshape(math.prod(x.shape[:-1]), x.shape[-1])  # a -1 beside no features would be anything


_LINEAR = Formulas(
    lambda x, w, of_x, of_w: multiply(
        of_x.operand("forward_activation", _rows(x), 1), of_w.operand("forward_weight", w, 1).mT, of_x
    ).reshape(*x.shape[:-1], w.shape[0]),
    lambda g, x, w, precision: multiply(
        precision.operand("dx_gradient", _rows(g), 1), precision.operand("dx_weight", w, 0), precision
    ).reshape(x.shape),
    lambda g, x, w, precision: multiply(
        precision.operand("dw_gradient", _rows(g), 0).mT,
        precision.operand("dw_activation", _rows(x), 0),
        precision,
    ),
)
_ATTENTION = Formulas(
    lambda a, b, of_a, of_b: multiply(
        of_a.operand("forward_activation", a, -1), of_b.operand("forward_activation", b, -2), of_a
    ),
    lambda g, a, b, precision: multiply(
        precision.operand("dx_gradient", g, -1), precision.operand("dw_activation", b, -1).mT, precision
    ),
    lambda g, a, b, precision: multiply(
        precision.operand("dw_activation", a, -2).mT, precision.operand("dw_gradient", g, -2), precision
    ),
)
