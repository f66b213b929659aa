"""The tables of elements that are lists of values, on a device."""

from __future__ import annotations

from functools import lru_cache

import torch

from fewbits.formats import Format
from fewbits.kernels.bits.options import Options
from fewbits.kernels.native.jobs.tables import table


def tables(format: Format, chosen: Options, device: torch.device) -> tuple[torch.Tensor | None, ...]:
    """Return the keys, codes, rising values and values by code of an element that is a list; else None."""
    if format.element.grid is not None:
        return (None,) * 4
    return _tables(format, chosen.rounding, chosen.overflow, device)


@lru_cache(maxsize=64)
def _tables(format: Format, rounding: str, overflow: str, device: torch.device) -> tuple[torch.Tensor, ...]:
    found = table(format.element, rounding, overflow)
    arrays = (found.keys, found.codes, found.values, found.by_code)
    return tuple(torch.tensor(array, device=device) for array in arrays)
