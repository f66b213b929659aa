"""Many codes to packed bits and back by arithmetic on words: what :mod:`~fewbits.kernels.bits.packing` does.

Thirty-two codes of b bits fill b words of 32 bits. So the codes at one place of each such group lie at one
place of its words, and each place is one operation on all groups.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from fewbits.kernels.bits.packing import line_bytes

_WORD = 32


def pack_words(codes: NDArray[Any], bits: int) -> NDArray[np.uint8]:
    """Return (n,) codes below 2^bits, 1 to 32 bits each, as (ceil(n * bits / 8),) bytes."""
    groups = np.zeros((-(-codes.size // _WORD), _WORD), np.uint64)
    groups.reshape(-1)[: codes.size] = codes
    words = np.zeros((bits + 1, len(groups)), np.uint64)  # one more: a shift may end at the end of the last
    for place, values in enumerate(groups.T):
        word, shift = divmod(place * bits, _WORD)
        shifted = values << np.uint64(shift)  # 63 bits at most
        words[word] |= shifted & np.uint64(0xFFFFFFFF)
        words[word + 1] |= shifted >> np.uint64(_WORD)
    packed = np.ascontiguousarray(words[:bits].T, dtype="<u4")
    return packed.reshape(-1).view(np.uint8)[: line_bytes(codes.size, bits)]


def unpack_words(packed: NDArray[np.uint8], bits: int, count: int) -> NDArray[np.int64]:
    """Return the (count,) codes of :func:`pack_words`."""
    padded = np.zeros((-(-count // _WORD), 4 * bits), np.uint8)
    padded.reshape(-1)[: packed.size] = packed
    words = np.zeros((bits + 1, len(padded)), np.uint64)
    words[:bits] = padded.view("<u4").T
    codes = np.empty((_WORD, len(padded)), np.int64)
    mask = np.uint64((1 << bits) - 1)
    for place, found in enumerate(codes):
        word, shift = divmod(place * bits, _WORD)
        found[:] = ((words[word] | words[word + 1] << np.uint64(_WORD)) >> np.uint64(shift)) & mask
    return np.ascontiguousarray(codes.T).reshape(-1)[:count]
