"""What lies between steps: a tensor in the format that a recipe gives it, really packed."""

from __future__ import annotations

import torch

from fewbits.recipes import Cast
from fewbits.tensor import NarrowTensor, casting, quantize
from fewbits.tensor.torch_dtypes import DTYPE_OF


def torch_dtype(how: Cast) -> torch.dtype | None:
    """Return the floating-point dtype of two bytes or more that has the values of the format, or None."""
    dtype = DTYPE_OF.get(how.format)
    return dtype if dtype is not None and dtype.itemsize > 1 else None


def rounded(x: torch.Tensor, how: Cast, rounding: str | None = None) -> torch.Tensor:
    """Return float32 ``x`` with its values rounded as ``how`` says, or with another rounding."""
    return casting.cast(
        x, how.format, rounding=rounding or how.rounding, scale_rule=how.scale_rule, shift=how.shift
    )


def stored(x: torch.Tensor, how: Cast | None) -> torch.Tensor:
    """Return float32 ``x`` as it is kept: itself, a 16-bit tensor of torch, or packed along its last axis."""
    if how is None:
        return x
    dtype = torch_dtype(how)
    if dtype is not None:
        return rounded(x, how).to(dtype)
    return quantize(
        x,
        how.format,
        rounding=how.rounding,
        scale_rule=how.scale_rule,
        overflow="saturate",
        generator=casting.fresh_seed(how.rounding),
    )


def loaded(x: torch.Tensor) -> torch.Tensor:
    """Return the float32 values of what was stored."""
    return x.dense() if isinstance(x, NarrowTensor) else x.float()


def bytes_of(x: torch.Tensor) -> int:
    """Return the bytes that a tensor holds."""
    return x.nbytes if isinstance(x, NarrowTensor) else x.numel() * x.element_size()
