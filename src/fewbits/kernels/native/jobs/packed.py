"""Packed parts as the compiled kernels read and write them."""

from __future__ import annotations

from functools import lru_cache

import numpy as np

from fewbits import _native
from fewbits.formats import Format, Group, shares_scale
from fewbits.kernels.bits.layout import Packed
from fewbits.kernels.bits.options import options
from fewbits.kernels.native.jobs.geometry import aligned
from fewbits.kernels.native.jobs.kernel_format import kernel_format


def reading_format(format: Format) -> _native.Format:
    """Return the format as kernels take it that read packed parts."""
    p = kernel_format(format, options(format))
    assert p is not None
    if shares_scale(format, "tensor"):
        p = _native.Format(p)
        p.whole_known = True
    return p


def contiguous_parts(q: Packed) -> Packed:
    """Return the parts in C order, at addresses that the kernels can read; copied only where needed."""
    return Packed(*(None if part is None else aligned(np.ascontiguousarray(part)) for part in q))  # type: ignore[arg-type]  # four parts, each of its own dtype


def joins_lines(format: Format, shape: tuple[int, ...], axis: int) -> bool:
    """Return whether all lines of a dense array can be worked on as one: none shares a byte or a block."""
    last = axis == len(shape) - 1 or not shape
    return last and _holds_whole_groups(format, shape[axis] if shape else 1)


@lru_cache(maxsize=1024)
def _holds_whole_groups(format: Format, n: int) -> bool:
    return all(_ends_with_a_line(group, n) for group in (format.groups.codes, *format.groups.shared))


def _ends_with_a_line(group: Group, n: int) -> bool:
    """Return whether a line of ``n`` values holds whole groups and whole bytes of them."""
    if isinstance(group.size, str):
        return group.size == "tensor"
    return n % group.size == 0 and n // group.size * group.bits % 8 == 0
