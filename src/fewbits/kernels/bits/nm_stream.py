"""The stream of an N:M sparse line: for each block of values a bit mask, then the codes that are kept.

The patterns are those of Accelerating Sparse Deep Neural Networks (Mishra and others 2021), section 3; the
layout is this library's own, docs/sparse_storage.md. A block has the fewest values from 512 on of which both
parts fill whole bytes; the last one of a line has what is left. In a block of G groups, bit ``p G + g`` of
the mask says whether group g keeps its value at position p, so that the bits of neighbouring groups lie side
by side. The codes that are kept follow in the order of the values. Every group has exactly N of them: a group
with fewer nonzero values keeps zeros too.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from fewbits.formats.pattern import Pattern
from fewbits.kernels.bits.packing import line_bytes

_LEAST_BLOCK = 512  # values


def block_size(pattern: Pattern) -> int:
    """Return how many values share a mask."""
    step = 8 * pattern.group
    return -(-_LEAST_BLOCK // step) * step


def stream_bytes(n: int, bits: int, pattern: Pattern) -> int:
    """Return the bytes of a line of ``n`` values, a multiple of the group, in codes of ``bits`` bits."""
    return sum(mask + codes for _, mask, codes in stream_blocks(n, bits, pattern))


def stream_blocks(n: int, bits: int, pattern: Pattern) -> Iterator[tuple[int, int, int]]:
    """Yield values, bytes of the mask and bytes of the codes of each block of a line."""
    most = block_size(pattern)
    for start in range(0, n, most):
        size = min(most, n - start)
        yield size, line_bytes(size, 1), line_bytes(size // pattern.group * pattern.keep, bits)


def by_magnitude(x: NDArray[np.floating], pattern: Pattern) -> NDArray[np.bool_]:
    """Return which (..., n) values are the N largest of their group, NaN above all; of equals the first."""
    groups = np.abs(x).reshape(*x.shape[:-1], x.shape[-1] // pattern.group, pattern.group)
    order = np.argsort(-np.where(np.isnan(groups), np.inf, groups), axis=-1, kind="stable")
    mask = np.zeros(groups.shape, bool)
    np.put_along_axis(mask, order[..., : pattern.keep], True, axis=-1)
    return mask.reshape(x.shape)
