"""The places of the largest magnitudes of an array."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from fewbits.errors import ArgumentError
from fewbits.kernels import native
from fewbits.kernels.arrays.threads import threads


def top_k(x: NDArray[Any], k: int) -> NDArray[np.int64]:
    """Return the places of the ``k`` values of largest magnitude, (k,), in rising order.

    :mod:`fewbits.kernels.reference.top_k.top_k` defines which they are, among equals and of NaN too.

    Args:
        x: (n,), float32, float16, or uint16 that are the bits of bfloat16.
        k: 0 to n.

    Raises:
        ArgumentError: k is not from 0 to n, or n is 2^31 or more.
    """
    check_count(k, x.size)
    places = np.empty(k, np.int64)
    native.top_k(x, places, threads=threads())
    return places


def check_count(k: int, n: int) -> None:
    """Raise ArgumentError unless ``k`` of ``n`` values can be taken.

    Raises:
        ArgumentError: k is not from 0 to n, or n is 2^31 or more.
    """
    if not 0 <= k <= n:
        raise ArgumentError(f"k={k} of {n} values; expected 0 to {n}")
    if n > native.MOST_RANKED:
        raise ArgumentError(f"{n} values; top_k takes {native.MOST_RANKED} at most: cut them into parts")
