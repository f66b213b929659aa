"""Packed parts as the compiled kernels read and write them."""

from __future__ import annotations

import numpy as np

from fewbits import _native
from fewbits.formats import Bdr, Block, Element, Format, shares_scale
from fewbits.kernels.bits.layout import Packed
from fewbits.kernels.bits.options import options
from fewbits.kernels.native.jobs.geometry import aligned
from fewbits.kernels.native.jobs.kernel_format import kernel_format


def reading_format(fmt: Format) -> _native.Format:
    """Return the format as kernels take it that read packed parts."""
    p = kernel_format(fmt, options(fmt))
    assert p is not None
    if shares_scale(fmt, "tensor"):
        p = _native.Format(p)
        p.whole_known = True
    return p


def contiguous_parts(q: Packed) -> Packed:
    """Return the parts in C order, at addresses that the kernels can read; copied only where needed."""
    return Packed(*(None if part is None else aligned(np.ascontiguousarray(part)) for part in q))  # type: ignore[arg-type]


def joins_lines(fmt: Format, shape: tuple[int, ...], axis: int) -> bool:
    """Return whether all lines of a dense array can be worked on as one: none shares a byte or a block."""
    n = shape[axis] if shape else 1
    last = axis == len(shape) - 1 or not shape
    if isinstance(fmt, Element):
        return last and n * fmt.bits % 8 == 0
    assert isinstance(fmt, Block | Bdr)
    if not last or n * fmt.element.bits % 8 or getattr(fmt, "outer_size", None) == "channel":
        return False
    if isinstance(fmt.size, str):
        return fmt.size == "tensor"
    whole = n % fmt.size == 0 and n // fmt.size * fmt.scale.bits % 8 == 0
    return whole and not (isinstance(fmt, Bdr) and n // fmt.k2 * fmt.d2 % 8)
