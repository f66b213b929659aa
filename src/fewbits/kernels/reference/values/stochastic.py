"""Stochastic rounding: which random bits a value gets, and when it is rounded up.

Random bits are added below the last bit that is kept, and what is below is cut. With B of them, a value that
lies the part f of the way from its lower neighbour to the upper one goes up where floor(2^B f) plus the draw,
uniform from 0 to 2^B - 1, reaches 2^B: with the probability floor(2^B f) / 2^B (Gupta et al., Deep Learning
with Limited Numerical Precision, 2015, section 3.1). B is 16, or 32 where it is asked for.

The draw for a value depends on the seed and on where the value lies in its array, on nothing else: not on the
number of threads, not on the order of work. The compiled kernels draw in
native/kernels/values/stochastic_draws.inc.hpp and round in rounding.inc.hpp beside it.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from fewbits.kernels.reference.values.threefry import ROUNDS, ROUNDS_OF_HALVES, threefry

Draws = NDArray[np.uint16] | NDArray[np.uint32]  # of as many random bits as the type has

_LOW = 0xFFFFFFFF


def draws(positions: NDArray[np.int64], seed: int, random_bits: int = 32) -> Draws:
    """Return one uniform integer of 16 or 32 bits per position.

    The words of 16 counters in a row, under the key ``seed``, are draws for neighbours. Of 32 bits there are
    64: position ``p`` has word ``p // 16 % 4`` of counter ``p // 64 * 16 + p % 16``. Of 16 bits there are
    128: position ``p`` has half ``p // 16 % 2``, the lower one first, of word ``p // 32 % 4`` of counter
    ``p // 128 * 16 + p % 16``.
    """
    flat = positions.reshape(-1)
    together = 64 if random_bits == 32 else 128
    counter, where = np.unique(flat // together * 16 + flat % 16, return_inverse=True)
    halves = counter.astype(np.uint64)
    words = np.zeros((counter.size, 4), np.uint32)
    words[:, 0], words[:, 1] = halves & np.uint64(_LOW), halves >> np.uint64(32)
    rounds = ROUNDS if random_bits == 32 else ROUNDS_OF_HALVES
    drawn = threefry(words, (seed & _LOW, seed >> 32, 0, 0), rounds)
    if random_bits == 32:
        return drawn[where, flat // 16 % 4].reshape(positions.shape)
    word = drawn[where, flat // 32 % 4]
    half = np.where(flat // 16 % 2 == 0, word & np.uint32(0xFFFF), word >> np.uint32(16))
    return half.astype(np.uint16).reshape(positions.shape)


def goes_up(fraction: NDArray[np.float64], draws: Draws) -> NDArray[np.bool_]:
    """Return which values are rounded up, each ``fraction`` of the way to the upper neighbour."""
    one = 2.0 ** (8 * draws.itemsize)
    return np.asarray(np.floor(fraction * one) + draws >= one)


def dropped_bits_go_up(dropped: NDArray[np.int64], shift: Any, draws: Draws) -> NDArray[np.bool_]:
    """Return which integers are rounded up: those whose ``shift`` low bits, ``dropped``, are removed.

    The draw is added to the upper ones of those bits: exactly what :func:`goes_up` does, in integers.
    """
    bits = 8 * draws.itemsize
    short = np.maximum(bits - np.minimum(shift, 62), 0)
    cut = (dropped << short) >> np.clip(shift - bits, 0, 62)
    return np.asarray(cut + draws.astype(np.int64) >= 1 << bits)
