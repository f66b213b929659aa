"""Sums and counts of rounding errors by operations of torch; kernels/reference/tally/tally.py defines them.

Sums of parts come from the device; the definition adds these one after the other, which is left to the host.
"""

from __future__ import annotations

import torch

from fewbits.kernels.bits.error_sums import LANES
from fewbits.kernels.reference.tally.tally import BEYOND_ROUNDING


def tally(
    x: torch.Tensor, y: torch.Tensor, limits: torch.Tensor, part: int
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return what became of ``x`` when it was rounded to ``y``.

    Args:
        x: (lines, n), float32 or float64. What is not finite counts as zero.
        y: the rounded values, of the same shape.
        limits: the largest magnitude that each value could have kept, float64, broadcastable to x.
        part: values of a line that are added in one go.

    Returns:
        (3, parts) float64, the signal, the noise and the relative errors of each part; (), the largest
        relative error; (3,) int64, values that are not zero, those flushed to zero, and those saturated.
    """
    finite = x.isfinite()
    wide, became = torch.where(finite, x, 0).double(), torch.where(finite, y, 0).double()
    size, error = wide.abs(), (became - wide).abs()
    nonzero = size > 0
    relative = torch.where(nonzero, error / torch.where(nonzero, size, 1), 0)
    counted = (nonzero, nonzero & (became == 0), size * BEYOND_ROUNDING > limits)
    most = torch.where(relative.isnan(), 0, relative).flatten()
    return (
        _part_sums(torch.stack((size * size, error * error, relative)), part),
        torch.cat((most, most.new_zeros(1))).amax(),
        torch.stack([which.sum() for which in counted]),
    )


def _part_sums(values: torch.Tensor, part: int) -> torch.Tensor:
    """Return the sums of parts of ``values``, (k, lines, n), in the order of the definition: (k, parts).

    Lines are filled up with zeros to whole lanes. A longer one is cut into parts; of shorter ones as many as
    fit are a part.
    """
    k, lines, n = values.shape
    if lines == 0 or n == 0:
        return values.new_zeros((k, 0))
    width = -(-n // LANES) * LANES
    lines_of_part = max(part // width, 1)
    together = lines_of_part * width if width < part else part
    columns = width - n if width < part else -n % part
    padded = torch.nn.functional.pad(values, (0, columns, 0, -lines % lines_of_part)).flatten(1)
    rows = padded.unflatten(1, (padded.shape[1] // together, together // LANES, LANES))
    first, *others = rows.permute(2, 0, 1, 3).contiguous().unbind(0)
    lanes: torch.Tensor = first
    for row in others:
        lanes = lanes + row
    while lanes.shape[-1] > 1:
        half = lanes.shape[-1] // 2
        lanes = lanes[..., :half] + lanes[..., half:]
    return lanes[..., 0]
