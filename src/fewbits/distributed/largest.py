"""The values of largest magnitude, exactly."""

from __future__ import annotations

import torch

_INTEGERS = {2: torch.int16, 4: torch.int32, 8: torch.int64}


def top_k(x: torch.Tensor, k: int) -> torch.Tensor:
    """Return where the ``k`` values of largest magnitude lie, (k,) int64, ascending.

    NaN counts as larger than infinity. Of equal magnitudes those that come first are taken.
    """
    size = x.element_size()
    magnitude = x.view(_INTEGERS[size]) & (2 ** (8 * size - 1) - 1)
    order = torch.sort(magnitude, descending=True, stable=True).indices
    return order[:k].sort().values
