"""The random generator Threefry 4x32 (Salmon et al., Parallel Random Numbers, SC 2011, 4.1).

Only additions, rotations and exclusive ors of 32-bit words, as many at once as a vector has. The authors
found 12 rounds enough to pass BigCrush (table 2) and published known answers for 13. Draws of 32 bits take
13 rounds, draws of 16 bits, half a word each, take 12.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

ROTATIONS = ((10, 26), (11, 21), (13, 27), (23, 5), (6, 20), (17, 11), (25, 10), (18, 20))
KEYED_BY = 0x1BD11BDA
ROUNDS = 13
ROUNDS_OF_HALVES = 12
_LOW = 0xFFFFFFFF


def threefry(
    counters: NDArray[np.uint32], key: tuple[int, int, int, int], rounds: int | None = None
) -> NDArray[np.uint32]:
    """Return four 32-bit words for each counter.

    Args:
        counters: shape ``(n, 4)``.
        key: four words of 32 bits.
        rounds: how often words are mixed; ``ROUNDS`` by default.

    Returns:
        uint32 of shape ``(n, 4)``.
    """
    keys = [np.uint32(k) for k in (*key, key[0] ^ key[1] ^ key[2] ^ key[3] ^ KEYED_BY)]
    x = [counters[:, i] + keys[i] for i in range(4)]
    for done in range(ROUNDS if rounds is None else rounds):
        # Each even word takes a neighbour in: the next one, then the one before.
        for even, rotation in zip((0, 2), ROTATIONS[done % 8], strict=True):
            odd = (even + (1 if done % 2 == 0 else 3)) % 4
            x[even] = x[even] + x[odd]
            x[odd] = (x[odd] << np.uint32(rotation) | x[odd] >> np.uint32(32 - rotation)) ^ x[even]
        if done % 4 == 3:
            turn = done // 4 + 1
            x = [x[i] + keys[(turn + i) % 5] for i in range(4)]
            x[3] = x[3] + np.uint32(turn)
    return np.stack(x, axis=1)
