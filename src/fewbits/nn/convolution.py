"""Convolutions whose three products round their operands along the axes they sum over.

The axes of Rouhani et al., Microscaling Data Formats for Deep Learning, 2023, figure 2, as its reference
implementation has them: channels forward, the batch for the weight's gradient, the result's channels for the
input's. With groups, blocks end where a group of channels ends. A transposed convolution sums over the same
axes; its weight has them the other way round.
"""

from __future__ import annotations

from typing import Any

import torch

from fewbits.errors import ArgumentError
from fewbits.kernels.ops.derivatives import unviewed
from fewbits.kernels.ops.no_autocast import no_autocast
from fewbits.nn import convolution_by_addition as by_addition
from fewbits.nn.convolution_by_addition import Geometry
from fewbits.nn.layer_precision import LayerPrecision
from fewbits.nn.products import converted, sum_dtype
from fewbits.nn.saved_activations import Tensors, save_activation
from fewbits.nn.straight_through import Formulas, differentiable, product, transformed, unpacked


def convolution(
    x: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None,
    geometry: Geometry,
    precision: LayerPrecision,
) -> torch.Tensor:
    """Return the convolution of a batch, with narrow operands in all three products.

    Args:
        x: (batch, channels, ...) with one to three spatial axes.
        weight: (n, channels / groups, ...), transposed (channels, n / groups, ...).
        bias: (n,), or None.
        geometry: stride, zeros on both sides, dilation, groups, and whether it is transposed.
        precision: what the operands are rounded to.

    Returns:
        (batch, n, ...) in the recipe's vector format. A float32 result that sums k products is within
        (k + 2) 2^-24 of the sum of their magnitudes; a 16-bit one is rounded once more.

    Raises:
        ArgumentError: x has other channels than the weight.
    """
    y: torch.Tensor
    channels = weight.shape[1] * geometry.groups if geometry.longer is None else weight.shape[0]
    if x.dim() == weight.dim() and x.shape[1] != channels:
        raise ArgumentError(
            f"{precision.layer or 'the convolution'} was given {x.shape[1]} channels, of shape"
            f" {tuple(x.shape)}; expected {channels}"
        )
    if transformed():
        y = product(precision.from_flow(x), weight, precision, _formulas(geometry))
    else:
        y = _Convolution.apply(precision.from_flow(x), weight, geometry, precision, torch.is_grad_enabled())  # type: ignore[no-untyped-call]  # torch gives apply no types
    return y if bias is None else y + converted(bias, y.dtype).reshape(-1, *(1,) * (y.dim() - 2))


def _operands(ctx: Any) -> tuple[Any, Any, Formulas]:
    weight, *saved = ctx.saved_tensors
    x = unpacked(ctx.activation, saved) if saved else weight.new_empty(1).expand(ctx.size)
    return x, weight, _formulas(ctx.geometry)


class _Convolution(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        x: torch.Tensor,
        weight: torch.Tensor,
        geometry: Geometry,
        precision: LayerPrecision,
        graded: bool,
    ) -> torch.Tensor:
        ctx.geometry, ctx.precision, ctx.size = geometry, precision, x.shape
        a = _within_groups("forward_activation", x, 1, geometry, precision)
        if geometry.longer is None:
            b = precision.round("forward_weight", weight, 1)
        else:
            b = _within_groups("forward_weight", weight, 0, geometry, precision)
        saved: Tensors = ()
        if graded and ctx.needs_input_grad[1]:  # now that who looks at operands may have changed the formats
            ctx.activation, saved = save_activation(x, "dw_activation", 0, x.shape, precision)
        ctx.save_for_backward(weight, *saved)
        if precision.recipe.product == "add":
            size = _result(x, weight, geometry)
            return unviewed(by_addition.convolution(a.float(), b.float(), geometry, size).to(x.dtype))
        with no_autocast(x):
            dtype = sum_dtype(x.dtype)
            a, b = a.to(dtype), b.to(x.dtype).to(dtype)
            return torch.convolution(
                a,
                b,
                None,
                geometry.stride,
                geometry.padding,
                geometry.dilation,
                *_transposition(geometry),
                geometry.groups,
            ).to(x.dtype)

    @staticmethod
    @differentiable(_operands)
    def backward(
        ctx: Any, gradient: torch.Tensor
    ) -> tuple[torch.Tensor | None, torch.Tensor | None, None, None, None]:
        weight, *saved = ctx.saved_tensors
        geometry, precision = ctx.geometry, ctx.precision
        adds = precision.recipe.product == "add"
        of_x = of_weight = None
        if ctx.needs_input_grad[0]:
            g = _within_groups("dx_gradient", gradient, 1, geometry, precision)
            if geometry.longer is None:
                b = _within_groups("dx_weight", weight, 0, geometry, precision)
            else:
                b = precision.round("dx_weight", weight, 1)
            if adds:
                wide = by_addition.of_input(g.float(), b.float(), geometry, ctx.size)
            else:
                wide = _backward(g, None, b, ctx.size, geometry)
            of_x = precision.to_flow("input_gradient", wide, gradient.dtype)
        if ctx.needs_input_grad[1]:
            g = precision.round("dw_gradient", gradient, 0)
            a = ctx.activation.operand(saved)
            if adds:
                of_weight = by_addition.of_weight(g.float(), a.float(), geometry, weight.shape)
            else:
                wide = _backward(g, a, None, weight.shape, geometry)
                of_weight = precision.to_flow("weight_gradient", wide, gradient.dtype)
        return of_x, of_weight, None, None, None


def _within_groups(
    role: str, x: torch.Tensor, axis: int, geometry: Geometry, precision: LayerPrecision
) -> torch.Tensor:
    """Return ``x`` as an operand whose blocks along ``axis`` do not reach from one group into the next."""
    if geometry.groups == 1:
        return precision.round(role, x, axis)
    return precision.round(role, torch.unflatten(x, axis, (geometry.groups, -1)), axis + 1).flatten(
        axis, axis + 1
    )


def _backward(
    g: torch.Tensor, x: torch.Tensor | None, weight: torch.Tensor | None, size: torch.Size, geometry: Geometry
) -> torch.Tensor:
    """Return the gradient, of shape ``size``, in float32 or g's dtype, of what is not given."""
    dtype = sum_dtype(g.dtype)
    unread = g.new_empty(1, dtype=dtype).expand(size)
    operands = [unread if t is None else t.to(g.dtype).to(dtype) for t in (x, weight)]
    wanted = [x is None, weight is None, False]
    gradients = torch.ops.aten.convolution_backward(
        g.to(dtype),
        *operands,
        None,
        geometry.stride,
        geometry.padding,
        geometry.dilation,
        *_transposition(geometry),
        geometry.groups,
        wanted,
    )
    of_operand: torch.Tensor = gradients[wanted.index(True)]
    return of_operand


def _transposition(geometry: Geometry) -> tuple[bool, tuple[int, ...]]:
    return geometry.longer is not None, geometry.longer or (0,) * len(geometry.stride)


def _result(x: torch.Tensor, weight: torch.Tensor, geometry: Geometry) -> torch.Size:
    """Return the shape of the convolution."""
    space = zip(
        x.shape[2:], weight.shape[2:], geometry.stride, geometry.padding, geometry.dilation, strict=True
    )
    return torch.Size(
        (len(x), len(weight), *((n + 2 * p - d * (k - 1) - 1) // s + 1 for n, k, s, p, d in space))
    )


def _formulas(geometry: Geometry) -> Formulas:
    """Return what :class:`_Convolution` computes, for further derivatives."""

    def forward(x: torch.Tensor, w: torch.Tensor, of_x: LayerPrecision, of_w: LayerPrecision) -> torch.Tensor:
        a = _within_groups("forward_activation", x, 1, geometry, of_x)
        if geometry.longer is None:
            b = of_w.round("forward_weight", w, 1)
        else:
            b = _within_groups("forward_weight", w, 0, geometry, of_w)
        if of_x.recipe.product == "add":
            return by_addition.convolution(a.float(), b.float(), geometry, _result(x, w, geometry)).to(
                x.dtype
            )
        dtype = sum_dtype(x.dtype)
        a, b = a.to(dtype), b.to(x.dtype).to(dtype)
        return torch.convolution(
            a,
            b,
            None,
            geometry.stride,
            geometry.padding,
            geometry.dilation,
            *_transposition(geometry),
            geometry.groups,
        ).to(x.dtype)

    def of_x(g: torch.Tensor, x: torch.Tensor, w: torch.Tensor, precision: LayerPrecision) -> torch.Tensor:
        left = _within_groups("dx_gradient", g, 1, geometry, precision)
        if geometry.longer is None:
            right = _within_groups("dx_weight", w, 0, geometry, precision)
        else:
            right = precision.round("dx_weight", w, 1)
        if precision.recipe.product == "add":
            return by_addition.of_input(left.float(), right.float(), geometry, x.shape).to(x.dtype)
        return _backward(left, None, right, x.shape, geometry).to(x.dtype)

    def of_weight(
        g: torch.Tensor, x: torch.Tensor, w: torch.Tensor, precision: LayerPrecision
    ) -> torch.Tensor:
        left, right = precision.round("dw_gradient", g, 0), precision.round("dw_activation", x, 0)
        if precision.recipe.product == "add":
            return by_addition.of_weight(left.float(), right.float(), geometry, w.shape)
        return _backward(left, right, None, w.shape, geometry).to(g.dtype)

    return Formulas(forward, of_x, of_weight)
