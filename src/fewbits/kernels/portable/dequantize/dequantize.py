"""From codes and scales to numbers, by plain operations of torch."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from fewbits.errors import ArgumentError
from fewbits.formats import Format


def dequantize(
    parts: Sequence[torch.Tensor | None],
    format: Format,
    shape: tuple[int, ...],
    axis: int,
    dtype: torch.dtype,
) -> torch.Tensor:
    """Return the values of packed codes, scales, shifts and outer scales, in ``dtype`` on their device."""
    raise ArgumentError(f"dequantize from {format} has no portable form yet: move the parts with .cpu()")
