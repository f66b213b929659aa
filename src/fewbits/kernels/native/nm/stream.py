"""Streams of structured sparse lines; kernels/reference/nm/stream.py defines them."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from fewbits import _native
from fewbits.formats.pattern import Pattern
from fewbits.kernels.native.dispatch.isa import active_isa

Bytes = NDArray[np.uint8]


def compress(
    codes: Bytes,
    stream: Bytes,
    pattern: Pattern,
    bits: int,
    n: int,
    zero: int,
    minus_zero: int,
    *,
    threads: int,
) -> int:
    """Write the streams of lines of packed codes; return the first line that keeps too many, or -1.

    Args:
        codes: (lines, bytes), packed codes of ``n`` values of ``bits`` bits.
        stream: (lines, bytes), takes the result.
        pattern: how many of how many are kept; n is a multiple of the group.
        bits: of a code.
        n: values in a line.
        zero: the code of what is not kept.
        minus_zero: the code of zero with the other sign, or ``zero``.
        threads: most threads to use.
    """
    active_isa()
    return _native.compress_lines(
        codes, n, bits, pattern.keep, pattern.group, zero, minus_zero, stream, threads
    )


def expand(
    stream: Bytes, codes: Bytes | None, pattern: Pattern, bits: int, n: int, zero: int, *, threads: int
) -> int:
    """Write packed codes from streams, or only check them; return the first line with a wrong mask, or -1."""
    active_isa()
    return _native.expand_lines(stream, n, bits, pattern.keep, pattern.group, zero, codes, threads)
