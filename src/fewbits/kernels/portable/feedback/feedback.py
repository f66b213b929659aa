"""Rounding with error feedback: the definition's steps, each by operations of torch."""

from __future__ import annotations

import torch

from fewbits.formats import Format
from fewbits.kernels.bits.options import Options
from fewbits.kernels.portable.dequantize.dequantize import dequantize
from fewbits.kernels.portable.quantize.quantize import quantize


def quantize_with_feedback(
    x: torch.Tensor, residual: torch.Tensor, format: Format, chosen: Options
) -> tuple[list[torch.Tensor], torch.Tensor]:
    """Return the packed parts of ``x`` plus the residual, and what their rounding leaves over, (n,) float32.

    :mod:`fewbits.kernels.reference.feedback.feedback` defines both.

    Args:
        x: (n,), float32, float16 or bfloat16.
        residual: (n,) float32.
        format: any, with its blocks along the only axis.
        chosen: from :func:`fewbits.kernels.bits.options.options`.
    """
    v = x.float() + residual
    present = quantize(v, format, 0, chosen, None)
    rest = iter(present)
    parts = tuple(None if group is None else next(rest) for group in format.groups)
    left = v - dequantize(parts, format, (v.numel(),), 0, torch.float32)
    return present, torch.where(left.isfinite(), left, 0)
