"""Products of a packed matrix with few vectors, which read its bits where they lie."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any

from numpy.typing import NDArray

from fewbits import _native
from fewbits.formats import Format
from fewbits.formats.pattern import Pattern, pattern
from fewbits.kernels.bits.layout import Packed
from fewbits.kernels.bits.options import options, read_format
from fewbits.kernels.native.dispatch.exact import exact_arithmetic
from fewbits.kernels.native.dispatch.isa import active_isa
from fewbits.kernels.native.jobs.geometry import aligned
from fewbits.kernels.native.jobs.kernel_format import kernel_format
from fewbits.kernels.native.jobs.packed import contiguous_parts, reading_format

Array = NDArray[Any]


Lent = Array | tuple[int, ...]  # as in quantize.py


def supports_product(format: Format) -> bool:
    """Return whether :func:`gemv` computes with this format."""
    return kernel_format(format, options(format)) is not None


def gemv(
    x: Array,
    q: Packed,
    y: Array,
    format: Format,
    sparsity: Pattern | None,
    zero: int,
    *,
    bfloat16: bool,
    threads: int,
    activation: Format | None = None,
) -> None:
    """Write ``x @ W.T`` into ``y``, straight from the packed bits of W.

    Args:
        x: (batch, n) float32 in C order.
        q: the parts of W, (lines, n), with its blocks along n.
        y: (batch, lines) float32 in C order.
        format: a format that :func:`supports_product` accepts.
        sparsity: of W, whose codes are streams then.
        zero: the code of what is not kept.
        bfloat16: whether every value of x is a bfloat16 of at least 2^-119, or zero.
        threads: most threads to use.
        activation: int8 with a float32 for each 32 values, to which x is rounded first; integers multiply
            where W has them. None leaves x as it is.
    """
    active_isa()
    x = aligned(x)
    p = _format(format, sparsity, zero)
    to = None if activation is None else kernel_format(activation, options(activation))
    _native.gemv(p, x, len(x), bfloat16, *contiguous_parts(q), y, threads, to)


def gemv_lent(
    p: _native.Format,
    x: Lent,
    batch: int,
    q: Sequence[Lent | None],
    y: Lent,
    threads: int,
    activation: Format | None,
) -> None:
    """Write ``x @ W.T`` into ``y``, all lent by tensors in C order, x and y of one type.

    Arguments and errors are those of :func:`gemv`; ``p`` is from :func:`gemv_format`. Sums are float32.
    """
    codes, scales, shifts, outer = q
    assert codes is not None
    to = None if activation is None else _rounding(activation.grammar)
    _native.gemv(p, x, batch, False, codes, scales, shifts, outer, y, threads, to)


@lru_cache(maxsize=256)
def gemv_format(format: str, sparsity: str | None, zero: int) -> _native.Format | None:
    """Return how the kernels read a packed matrix, by texts; None if they do not compute with the format.

    Raises:
        ArgumentError: ``FEWBITS_ISA`` names an instruction set that cannot run.
    """
    active_isa()
    fmt = read_format(format)
    with exact_arithmetic():  # of the tables of the format
        if not supports_product(fmt):
            return None
        return _format(fmt, None if sparsity is None else pattern(sparsity), zero)


@lru_cache(maxsize=16)
def _rounding(format: str) -> _native.Format | None:
    """Return how the kernels round to a format, by its text, which takes less time to hash."""
    to = read_format(format)
    return kernel_format(to, options(to))


def _format(format: Format, sparsity: Pattern | None, zero: int) -> _native.Format:
    p = reading_format(format)
    if sparsity is not None:
        p = _native.Format(p)
        p.keep, p.group, p.zero = sparsity.keep, sparsity.group, zero
    return p
