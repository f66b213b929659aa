"""The places of the largest magnitudes of an array: the definition."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray


def top_k(x: NDArray[Any], k: int) -> NDArray[np.int64]:
    """Return the places of the ``k`` values of largest magnitude, in rising order.

    Magnitudes are compared by their bits without the sign: infinity is above all numbers, NaN above infinity,
    and both zeros are equal. Of equal magnitudes the first ones count as larger.

    Args:
        x: (n,), float32, float16, or uint16 that are the bits of bfloat16.
        k: 0 to n.
    """
    magnitudes = x.view(np.int32) & 0x7FFFFFFF if x.itemsize == 4 else x.view(np.int16) & 0x7FFF
    return np.sort(np.argsort(-magnitudes, kind="stable")[:k])
