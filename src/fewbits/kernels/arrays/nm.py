"""N:M sparsity: lines of codes as streams of a mask and what it keeps (docs/sparse_storage.md), and back."""

from __future__ import annotations

from functools import lru_cache
from math import prod

import numpy as np
from numpy.typing import NDArray

from fewbits.errors import ArgumentError, DataError, FormatError
from fewbits.formats import Format
from fewbits.formats.pattern import Pattern
from fewbits.kernels import native
from fewbits.kernels.arrays.threads import threads
from fewbits.kernels.bits.memory import empty_aligned
from fewbits.kernels.bits.nm_permutation import NmPermutation
from fewbits.kernels.bits.nm_stream import stream_bytes
from fewbits.kernels.bits.packing import line_bytes
from fewbits.kernels.native import PermutationSearch
from fewbits.kernels.reference import encode

Bytes = NDArray[np.uint8]


@lru_cache(maxsize=256)
def zeros(format: Format) -> tuple[int, int]:
    """Return the codes of zero and of minus zero, equal if there is only one zero.

    Raises:
        FormatError: the format has no zero.
    """
    if not format.element.has_zero:
        raise FormatError(
            f"{format} has no zero, which sparsity needs for what it leaves out: choose another"
        )
    codes = encode(format.element, np.array([0.0, -0.0]), "nearest_even", "saturate", None)
    return int(codes[0]), int(codes[1])


def check_length(n: int, pattern: Pattern, what: str) -> None:
    """Raise ArgumentError unless ``n`` values are a whole number of groups.

    Raises:
        ArgumentError: they are not.
    """
    if n % pattern.group:
        raise ArgumentError(
            f"{n} values along the axis of {what}; {pattern} needs a multiple of {pattern.group}: pad them, "
            "choose another axis or leave it dense"
        )


def compress(codes: Bytes, format: Format, n: int, pattern: Pattern, out: Bytes | None = None) -> Bytes:
    """Return the streams of (..., bytes) packed codes of ``n`` values each; in ``out``, if given.

    Raises:
        DataError: a group has more nonzero values than the pattern keeps.
        FormatError: the format has no zero.
    """
    bits, (zero, minus_zero) = format.element.bits, zeros(format)
    lines = np.ascontiguousarray(codes).reshape(prod(codes.shape[:-1]), codes.shape[-1])
    shape = (len(lines), stream_bytes(n, bits, pattern))
    stream = empty_aligned(shape, np.uint8) if out is None else out.reshape(shape)
    wrong = native.compress(lines, stream, pattern, bits, n, zero, minus_zero, threads=threads())
    refuse_crowded(wrong, pattern)
    return stream.reshape(*codes.shape[:-1], stream.shape[-1])


def expand(stream: Bytes, format: Format, n: int, pattern: Pattern, out: Bytes | None = None) -> Bytes:
    """Return the packed codes of (..., bytes) streams; in ``out``, if given, which is in C order.

    Raises:
        DataError: a mask does not keep exactly as many values as the pattern says.
    """
    bits = format.element.bits
    lines = _lines(stream, n, bits, pattern)
    shape = (len(lines), line_bytes(n, bits))
    codes = empty_aligned(shape, np.uint8) if out is None else out.reshape(shape)
    refuse_damaged(
        native.expand(lines, codes, pattern, bits, n, zeros(format)[0], threads=threads()), pattern
    )
    return codes.reshape(*stream.shape[:-1], codes.shape[-1])


def check_masks(stream: Bytes, format: Format, n: int, pattern: Pattern) -> None:
    """Raise DataError unless every mask of (..., bytes) streams matches the pattern.

    Raises:
        DataError: a mask does not.
    """
    bits = format.element.bits
    lines = _lines(stream, n, bits, pattern)
    refuse_damaged(native.expand(lines, None, pattern, bits, n, zeros(format)[0], threads=threads()), pattern)


def _lines(stream: Bytes, n: int, bits: int, pattern: Pattern) -> Bytes:
    lines = np.ascontiguousarray(stream).reshape(prod(stream.shape[:-1]), stream.shape[-1])
    assert lines.shape[1] == stream_bytes(n, bits, pattern)
    return lines


def refuse_crowded(line: int, pattern: Pattern) -> None:
    """Raise DataError for a line that keeps too many values; -1 is none.

    Raises:
        DataError: there is one.
    """
    if line >= 0:
        raise DataError(
            f"line {line} has a group of {pattern.group} with more than {pattern.keep} values that are not "
            f"zero; {pattern} stores what is sparse already: set the others to zero first"
        )


def refuse_damaged(line: int, pattern: Pattern) -> None:
    """Raise DataError for a line with a damaged mask; -1 is none.

    Raises:
        DataError: there is one.
    """
    if line >= 0:
        raise DataError(
            f"line {line} has a mask that does not keep {pattern.keep} of each {pattern.group}, as {pattern} "
            "says; the stream is damaged: write it again from the source"
        )


def permutation_search(state: NmPermutation) -> PermutationSearch:
    """Return the steps of the search for an order of columns; they work on the arrays of ``state`` in place.

    :mod:`fewbits.kernels.reference.nm.permutation` defines them.
    """
    return PermutationSearch(state)
