"""Products of a packed matrix with few vectors, which read its bits where they lie."""

from __future__ import annotations

from typing import Any

from numpy.typing import NDArray

from fewbits import _native
from fewbits.formats import Format
from fewbits.formats.pattern import Pattern
from fewbits.kernels.bits.layout import Packed
from fewbits.kernels.bits.options import options
from fewbits.kernels.native.dispatch.isa import active_isa
from fewbits.kernels.native.jobs.geometry import aligned
from fewbits.kernels.native.jobs.kernel_format import kernel_format
from fewbits.kernels.native.jobs.packed import contiguous_parts, reading_format

Array = NDArray[Any]


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
) -> None:
    """Write ``x @ W.T`` into ``y``, straight from the packed bits of W.

    Args:
        x: (batch, n) float32 in C order.
        q: the parts of W, (lines, n), with its blocks along n.
        y: (batch, lines) float32 in C order.
        format: a format that :func:`supports_product` accepts.
        sparsity: of W, whose codes are streams then.
        zero: the code of what is not kept.
        bfloat16: whether every value of x is a normal bfloat16, or zero.
        threads: most threads to use.
    """
    active_isa()
    x = aligned(x)
    p = reading_format(format)
    if sparsity is not None:
        p = _native.Format(p)
        p.keep, p.group, p.zero = sparsity.keep, sparsity.group, zero
    _native.gemv(p, x, bfloat16, *contiguous_parts(q), y, threads)
