"""What stays the same from one conversion to the next like it: the kernels' format, and where values lie.

To find it out takes longer than to convert some ten thousand values.
"""

from __future__ import annotations

from functools import lru_cache
from math import prod
from typing import NamedTuple

from fewbits import _native
from fewbits.formats import shares_scale
from fewbits.kernels.bits.options import options as default_options
from fewbits.kernels.bits.options import read_format, read_options
from fewbits.kernels.native.dispatch.exact import exact_arithmetic
from fewbits.kernels.native.dispatch.isa import active_isa
from fewbits.kernels.native.jobs.geometry import geometry_of, one_line
from fewbits.kernels.native.jobs.kernel_format import kernel_format
from fewbits.kernels.native.jobs.packed import joins_lines, reading_format

Shape = tuple[int, ...]


class Plan(NamedTuple):
    """A conversion of arrays of one shape and layout to one format."""

    format: _native.Format  # as all calls take it that neither draw nor share a scale in the whole array
    where: _native.Geometry
    everything: _native.Geometry  # all values in any order, of which the largest is sought
    shared: bool  # whether the whole array shares a scale
    drawn: bool  # whether values are rounded stochastically
    nonfinite: str  # what becomes of NaN and infinity; fewbits.quantize has the words

    def format_of_call(self, seed: int, largest: float | None, bad: bool) -> _native.Format:
        """Return the format for one call.

        Args:
            seed: of stochastic rounding.
            largest: the largest magnitude of the whole array, where all of it shares a scale.
            bad: whether that scale is NaN.
        """
        if not (self.shared or self.drawn):
            return self.format
        p = _native.Format(self.format)
        p.seed = seed
        if largest is not None:
            p.whole_known, p.whole, p.whole_bad = True, largest, bad
        return p


@lru_cache(maxsize=1024)
def plan(format: str, options: str, shape: Shape, steps: Shape | None, axis: int) -> Plan | None:
    """Return the plan of a rounding, or None if the compiled kernels do not support it.

    Args:
        format: in the grammar.
        options: as :attr:`fewbits.kernels.bits.options.Options.text`.
        shape: of the array.
        steps: from one value to the next along each axis, in values; None in C order.
        axis: along which blocks lie.

    Raises:
        ArgumentError: ``FEWBITS_ISA`` names an instruction set that cannot run.
    """
    active_isa()
    fmt, chosen = read_format(format), read_options(options, 0)
    with exact_arithmetic():  # of the tables of the format
        p = kernel_format(fmt, chosen)
    front = axis % len(shape) if shape else 0
    everything = one_line(prod(shape)) if steps is None else geometry_of(shape, steps, max(len(shape) - 1, 0))
    joined = steps is None and joins_lines(fmt, shape, front)
    where = everything if joined else geometry_of(shape, steps, front)
    if p is None or where is None or everything is None:
        return None
    drawn = chosen.rounding == "stochastic"
    return Plan(p, where, everything, shares_scale(fmt, "tensor"), drawn, chosen.nonfinite)


class ReadingPlan(NamedTuple):
    """A conversion of packed parts to values in C order."""

    format: _native.Format
    where: _native.Geometry


@lru_cache(maxsize=1024)
def reading_plan(format: str, shape: Shape, axis: int) -> ReadingPlan | None:
    """Return the plan of dequantizing to an array of ``shape``, or None if no compiled kernel does.

    Raises:
        ArgumentError: ``FEWBITS_ISA`` names an instruction set that cannot run.
    """
    found = plan(format, default_options(read_format(format)).text, shape, None, axis)
    return None if found is None else ReadingPlan(reading_format(read_format(format)), found.where)
