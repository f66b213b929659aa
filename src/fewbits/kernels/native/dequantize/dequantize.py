"""Dequantize by the compiled kernels: one pass over memory."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from numpy.typing import NDArray

from fewbits import _native
from fewbits.formats import Format
from fewbits.kernels.bits.layout import Packed
from fewbits.kernels.native.jobs.packed import contiguous_parts
from fewbits.kernels.native.jobs.plan import ReadingPlan, reading_plan

Array = NDArray[Any]
Lent = Array | tuple[int, ...]  # as in quantize.py


def dequantize(q: Packed, out: Array, format: Format, axis: int, *, threads: int, add: bool = False) -> None:
    """Write the values of ``q`` into ``out``, which is in C order, of one of the types of fake_quantize.

    With ``add``, add them to ``out``, which is then (n,) float32.
    """
    planned = reading_plan(format.grammar, out.shape, axis)
    assert planned is not None  # C order needs two axes at most
    dequantize_lent(planned, contiguous_parts(q), out, threads, add=add)


def dequantize_lent(
    planned: ReadingPlan, q: Sequence[Lent | None], out: Lent, threads: int, *, add: bool = False
) -> None:
    """Write the values of ``q``, of the plan's shape, into ``out``, or add them to it."""
    codes, scales, shifts, outer = q
    assert codes is not None
    _native.dequantize(*planned, codes, scales, shifts, outer, out, add, threads)
