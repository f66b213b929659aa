"""Streams of N:M sparse lines: the definition; :mod:`fewbits.kernels.bits.nm_stream` has the layout."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from fewbits.formats.pattern import Pattern
from fewbits.kernels.bits.nm_stream import stream_blocks
from fewbits.kernels.bits.packing import pack, unpack

Codes = NDArray[np.unsignedinteger]


def compress(
    codes: Codes, pattern: Pattern, bits: int, zero: int, minus_zero: int
) -> NDArray[np.uint8] | None:
    """Return (..., n) codes as (..., bytes) streams; None where a group has more than N that are not zero.

    Args:
        codes: one integer for each value; n is a multiple of the group.
        pattern: how many of how many are kept.
        bits: of a code.
        zero: the code that the values which are not kept become.
        minus_zero: the code of zero with the other sign, or ``zero`` again. Where a group has room, it is
            kept before ``zero``.
    """
    keep = kept(codes, pattern, zero, minus_zero)
    if keep is None:
        return None
    *others, n = codes.shape
    parts, start = [], 0
    for size, _, _ in stream_blocks(n, bits, pattern):
        here, mask = codes[..., start : start + size], keep[..., start : start + size]
        by_position = np.swapaxes(mask.reshape(*others, size // pattern.group, pattern.group), -1, -2)
        parts.append(np.packbits(by_position.reshape(*others, size), axis=-1, bitorder="little"))
        left = size // pattern.group * pattern.keep
        parts.append(pack(here[mask].reshape(*others, left), bits))
        start += size
    return np.concatenate(parts, axis=-1) if parts else np.empty((*others, 0), np.uint8)


def expand(stream: NDArray[np.uint8], pattern: Pattern, bits: int, n: int, zero: int) -> Codes | None:
    """Return the (..., n) codes of :func:`compress`; None where a group does not keep exactly N."""
    others = stream.shape[:-1]
    dtype = unpack(np.empty(0, np.uint8), bits, 0).dtype
    codes, start, at = np.full((*others, n), zero, dtype), 0, 0
    for size, of_mask, of_codes in stream_blocks(n, bits, pattern):
        flags = np.unpackbits(stream[..., at : at + of_mask], axis=-1, count=size, bitorder="little")
        by_position = flags.reshape(*others, pattern.group, size // pattern.group)
        if (by_position.sum(-2) != pattern.keep).any():
            return None
        mask = np.swapaxes(by_position, -1, -2).reshape(*others, size).astype(bool)
        at += of_mask
        left = size // pattern.group * pattern.keep
        codes[..., start : start + size][mask] = unpack(stream[..., at : at + of_codes], bits, left).ravel()
        start, at = start + size, at + of_codes
    return codes


def kept(codes: Codes, pattern: Pattern, zero: int, minus_zero: int) -> NDArray[np.bool_] | None:
    """Return which of (..., n) codes a stream keeps: exactly N of every group; None where N are too few.

    First what is not zero, then minus zero, then zero; among equals the first.
    """
    groups = codes.reshape(*codes.shape[:-1], codes.shape[-1] // pattern.group, pattern.group)
    rank = np.where(groups == zero, 2, np.where(groups == minus_zero, 1, 0))
    if ((rank == 0).sum(-1) > pattern.keep).any():
        return None
    chosen = np.argsort(rank, axis=-1, kind="stable")[..., : pattern.keep]
    mask = np.zeros(groups.shape, bool)
    np.put_along_axis(mask, chosen, True, axis=-1)
    return mask.reshape(codes.shape)
