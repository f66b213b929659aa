"""Dequantize by the compiled kernels: one pass over memory."""

from __future__ import annotations

from typing import Any

from numpy.typing import NDArray

from fewbits import _native
from fewbits.formats import Format
from fewbits.kernels.bits.layout import Packed
from fewbits.kernels.native.dispatch.isa import active_isa
from fewbits.kernels.native.jobs.geometry import geometry, one_line
from fewbits.kernels.native.jobs.packed import contiguous_parts, joins_lines, reading_format

Array = NDArray[Any]


def dequantize(q: Packed, out: Array, format: Format, axis: int, *, threads: int) -> None:
    """Write the values of ``q`` into ``out``, which is in C order, of one of the types of fake_quantize."""
    active_isa()
    p = reading_format(format)
    where = one_line(out.size) if joins_lines(format, out.shape, axis) else geometry(out, axis)
    assert where is not None  # C order needs two axes at most
    _native.dequantize(p, where, *contiguous_parts(q), out, threads)
