"""From numbers to codes and scales, and to rounded numbers, by plain operations of torch."""

from __future__ import annotations

import torch

from fewbits.errors import ArgumentError
from fewbits.formats import Format
from fewbits.kernels.bits.options import Options


def fake_quantize(
    x: torch.Tensor, format: Format, axis: int, chosen: Options, amax: float | None
) -> torch.Tensor:
    """Return ``x`` rounded to ``format``, in its dtype and shape on its device, in C order."""
    raise ArgumentError(f"fake_quantize to {format} has no portable form yet: move x with x.cpu()")


def quantize(
    x: torch.Tensor, format: Format, axis: int, chosen: Options, amax: float | None
) -> list[torch.Tensor]:
    """Return the packed parts of ``x`` that the format has: codes, scales, shifts, outer scales."""
    raise ArgumentError(f"quantize to {format} has no portable form yet: move x with x.cpu()")
