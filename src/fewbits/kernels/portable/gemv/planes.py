"""Products of ternary or binary weights with integers; kernels/reference/gemv/planes.py defines them."""

from __future__ import annotations

import torch

from fewbits.formats import Element, Format
from fewbits.kernels.bits.options import options
from fewbits.kernels.portable.dequantize.dequantize import dequantize
from fewbits.kernels.portable.quantize.quantize import quantize

_EXACT = 1 << 12  # values of a line whose sum, with integers of eight bits, is far below 2^24


def plane_product(
    x: torch.Tensor,
    codes: torch.Tensor,
    scales: torch.Tensor | None,
    lines: int,
    format: Format,
    activation: Format,
) -> torch.Tensor:
    """Return the (batch, lines) products of ``x``, rounded to ``activation``, with W, float32.

    Args:
        x: (batch, n) float32.
        codes: of W, (lines, n), with its blocks along n.
        scales: of W; None for ones.
        lines: of W.
        format: of W, ternary or binary.
        activation: of integers of at most eight bits, or of 1 and -1, with a float32 scale for each vector.
    """
    if not x.numel() or not lines:
        return x.new_zeros(len(x), lines)
    rule = "floor" if activation.element.has_zero else "absmean"
    of_vectors, x_scales = quantize(x, activation, 1, options(activation, scale_rule=rule), None)
    left = _decoded(of_vectors, activation.element, *x.shape).split(_EXACT, 1)
    right = _decoded(codes, format.element, lines, x.shape[1]).split(_EXACT, 1)
    # Sums of float32 are exact here, in any order, and so is their sum in float64; it is rounded once.
    pairs = zip(left, right, strict=True)
    exact = torch.stack([(of_x @ of_w.t()).double() for of_x, of_w in pairs]).sum(0).float()
    scale = x_scales.view(torch.float32)
    if scales is not None:
        scale = scale * scales.view(torch.float32).reshape(1, -1)
    return exact * scale


def _decoded(codes: torch.Tensor, element: Element, lines: int, n: int) -> torch.Tensor:
    return dequantize((codes, None, None, None), element, (lines, n), 1, torch.float32)
