"""Random bits indexed by position: Philox 4x32-7 (Salmon et al., Parallel Random Numbers, SC 2011).

Seven rounds are the fewest that pass BigCrush there (table 2). Ten would take longer than all else that
rounding does.

The draw for a value depends on the seed and on where the value lies in its array, on nothing else: not on the
number of threads, not on the order of work.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

_MULTIPLIERS = (np.uint64(0xD2511F53), np.uint64(0xCD9E8D57))
_WEYL = (0x9E3779B9, 0xBB67AE85)
_ROUNDS = 7
_LOW = np.uint64(0xFFFFFFFF)
_HALF = np.uint64(32)


def philox(counters: NDArray[np.uint64], key: int) -> NDArray[np.uint32]:
    """Return four 32-bit words for each counter.

    Args:
        counters: shape ``(n, 4)``, each a 32-bit word in a uint64.
        key: 64 bits.

    Returns:
        uint32 of shape ``(n, 4)``.
    """
    c0, c1, c2, c3 = (counters[:, i] for i in range(4))
    k0, k1 = key & 0xFFFFFFFF, key >> 32
    for _ in range(_ROUNDS):
        first, second = c0 * _MULTIPLIERS[0], c2 * _MULTIPLIERS[1]
        c0 = (second >> _HALF) ^ c1 ^ np.uint64(k0)
        c2 = (first >> _HALF) ^ c3 ^ np.uint64(k1)
        c1, c3 = second & _LOW, first & _LOW
        k0, k1 = (k0 + _WEYL[0]) & 0xFFFFFFFF, (k1 + _WEYL[1]) & 0xFFFFFFFF
    return np.stack([c0, c1, c2, c3], axis=1).astype(np.uint32)


def draws(positions: NDArray[np.int64], seed: int) -> NDArray[np.uint32]:
    """Return one uniform 32-bit integer per position: word ``p % 4`` of counter ``p // 4`` under ``seed``."""
    flat = positions.reshape(-1).astype(np.uint64)
    block, where = np.unique(flat >> np.uint64(2), return_inverse=True)
    zero = np.zeros_like(block)
    words = philox(np.stack([block & _LOW, block >> _HALF, zero, zero], axis=1), seed)
    return words[where, (flat & np.uint64(3)).astype(np.int64)].reshape(positions.shape)
