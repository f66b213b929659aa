"""Which frequency bands a tensor is of."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class BandShares:
    """Where the energy of one tensor of a layer lies."""

    layer: str
    kind: str  # "activation" or "gradient"
    shares: tuple[float, ...]  # of the sum of squares: low, horizontal, vertical, diagonal
