"""Products of dense matrices whose values are rounded on the way; native/jobs/product.hpp."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from fewbits import _native
from fewbits.formats import Format
from fewbits.kernels.bits.options import Options
from fewbits.kernels.native.dispatch.isa import active_isa
from fewbits.kernels.native.jobs.kernel_format import kernel_format

_TOGETHER = 256  # values of a line that are rounded at a time: whole blocks

Rounding = tuple[Format, Options] | None
"""What a factor is rounded to, with blocks along the axis of the sum; None leaves it as it is."""


def has_unit(unit: str) -> bool:
    """Return whether the instruction set in use has what makes a unit fast.

    Args:
        unit: ``integers`` multiplies bytes, ``integers16`` and ``bfloat16`` pairs of those, ``bfloat16x2``
            two for each value; ``float32`` is always there. Tiles of bfloat16 are faster than bytes, and
            take their place.
    """
    active_isa()
    return _native.has_unit(unit)


def has_bfloat16_products() -> bool:
    """Return whether :func:`product` can multiply bfloat16."""
    return has_unit("bfloat16")


def has_tiles() -> bool:
    """Return whether those products run on tiles (AMX), at several times the rate of float32."""
    return active_isa() == "amx"


def rounds_in_product(format: Format, chosen: Options) -> bool:
    """Return whether :func:`product` can round to ``format`` on the way, and the values are all bfloat16.

    Draws and scales of a whole tensor depend on more than the values that are rounded together.
    """
    grid, scales = format.element.grid, format.groups.scales
    if grid is None or grid.mantissa_bits > 7 or scales is None or not scales.power_of_two:
        return False
    whole = isinstance(scales.size, int) and _TOGETHER % scales.size == 0
    fits = whole and chosen.rounding != "stochastic" and chosen.nonfinite != "raise"
    return fits and kernel_format(format, chosen) is not None


def product(
    a: NDArray[Any],
    b: NDArray[Any],
    y: NDArray[Any],
    unit: str,
    *,
    block: int = 32,
    of_a: Rounding = None,
    of_b: Rounding = None,
    threads: int,
    lower: str = "",
    subtracts: bool = False,
) -> bool:
    """Write ``a @ b`` into ``y``; return False, y being of no use, where the unit cannot multiply the values.

    Args:
        a: (batch, m, k), float32, float16, or uint16, the bits of bfloat16; the rows or the columns of
            each matrix lie side by side.
        b: (batch, k, n), likewise.
        y: (batch, m, n) of one of those types, in C order.
        unit: see :func:`has_unit`. ``integers`` needs that the values of a block are multiples of 2^-6 times
            the binade of its largest, which lies within 2^-120 and infinity; ``integers16`` the same of 2^-8
            and 2^-118; ``bfloat16`` that all values are
            bfloat16, and the product of the least of them at least 2^-112.
        block: 16 or 32: the values that share a scale.
        of_a: what a is rounded to first, of what :func:`rounds_in_product` accepts.
        of_b: likewise.
        threads: most threads to use.
        lower: which matrix is lower triangular: ``result``, ``left``, ``left transposed``, ``right`` or none.
            A result has zeros or sums beyond its diagonal, whichever take less; a factor has zeros there,
            and the result is what it would be without a word about them.
        subtracts: whether to subtract from ``y``, float32, whose rows may lie apart. Then ``unit`` is
            ``bfloat16``, whose subnormal values and products count as zeros, or ``bfloat16x2``, the same for
            two bfloat16 whose sum is nearest to each float32, without the product of the second ones.
    """
    active_isa()
    return _native.product(unit, a, _record(of_a), b, _record(of_b), block, y, threads, lower, subtracts)


def _record(rounding: Rounding) -> _native.Format | None:
    if rounding is None:
        return None
    found = kernel_format(*rounding)
    assert found is not None
    return found


def side_by_side(x: NDArray[Any]) -> NDArray[Any]:
    """Return ``x``, (batch, rows, columns), with rows or columns side by side, copied only if needed."""
    lies = x.flags.aligned and all(step % x.itemsize == 0 for step in x.strides)
    beside = any(x.strides[i] == x.itemsize or x.shape[i] <= 1 for i in (1, 2))
    return x if lies and beside else np.ascontiguousarray(x)
