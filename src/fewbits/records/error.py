"""What rounding did to the values of one array."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Error:
    """What rounding one array to a format did to its values."""

    qsnr_db: float  # -10 log10(noise power / signal power); inf when nothing changed
    max_relative_error: float  # over the nonzero finite inputs
    mean_relative_error: float
    saturated_fraction: float  # finite inputs beyond the largest value the element could take
    flushed_fraction: float  # nonzero inputs that became zero
