"""Stochastic rounding: which random bits a value gets, and when it is rounded up.

A value between two neighbours goes up with the probability floor(2^32 f) / 2^32, where f is its distance from
the lower one in units of theirs (Gupta et al., Deep Learning with Limited Numerical Precision, 2015, section
3.1, with 32 random bits).

The draw for a value depends on the seed and on where the value lies in its array, on nothing else: not on the
number of threads, not on the order of work. The compiled kernels draw in
native/kernels/values/stochastic_draws.inc.hpp and round in rounding.inc.hpp beside it.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from fewbits.kernels.reference.values.threefry import threefry

Draws = NDArray[np.uint32]

_LOW = 0xFFFFFFFF


def draws(positions: NDArray[np.int64], seed: int) -> NDArray[np.uint32]:
    """Return one uniform 32-bit integer per position.

    Position ``p`` has word ``p // 16 % 4`` of counter ``p // 64 * 16 + p % 16`` under the key ``seed``: the
    words of a vector of counters are draws for neighbours.
    """
    flat = positions.reshape(-1)
    counter, where = np.unique(flat // 64 * 16 + flat % 16, return_inverse=True)
    halves = counter.astype(np.uint64)
    words = np.zeros((counter.size, 4), np.uint32)
    words[:, 0], words[:, 1] = halves & np.uint64(_LOW), halves >> np.uint64(32)
    drawn = threefry(words, (seed & _LOW, seed >> 32, 0, 0))
    return drawn[where, flat // 16 % 4].reshape(positions.shape)


def goes_up(fraction: NDArray[np.float64], draws: Draws) -> NDArray[np.bool_]:
    """Return which values are rounded up, each ``fraction`` of the way to the upper neighbour."""
    return np.asarray(np.floor(fraction * 2.0**32) > draws)


def dropped_bits_go_up(dropped: NDArray[np.int64], shift: Any, draws: Draws) -> NDArray[np.bool_]:
    """Return which integers are rounded up: those whose ``shift`` low bits, ``dropped``, are removed.

    The upper 32 of those bits are compared with the draw: exactly what :func:`goes_up` does, in integers.
    """
    short = np.maximum(32 - np.minimum(shift, 62), 0)
    return np.asarray(((dropped << short) >> np.clip(shift - 32, 0, 62)) > draws)
