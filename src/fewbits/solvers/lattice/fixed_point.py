"""Numbers as integers with one norm for all along an axis, as spinors of a lattice are kept.

The rule is that of :mod:`fewbits.kernels.reference.lattice.spinors`: the largest magnitude becomes 32767 or
127, and what is below 2^-100 zero.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

from fewbits.kernels.bits.lattice import INTEGER_MAX

Array = NDArray[Any]
Norms = NDArray[np.float32]

SMALLEST = 2.0**-100


def encode(values: Array, dtype: DTypeLike, axis: int) -> tuple[Array, Norms | None]:
    """Return values as they are stored in ``dtype``, and norms without that axis; None for floats."""
    top = INTEGER_MAX.get(np.dtype(dtype).name)
    if top is None:
        return values.astype(dtype, copy=False), None
    with np.errstate(all="ignore"):  # what leaves float32 has an infinite norm, and no solution comes of it
        values = values.astype(np.float32, copy=False)
        most = np.abs(values).max(axis)
        most = np.where(most >= np.float32(SMALLEST), most, np.float32(0))
        factor = np.where(most > 0, np.float32(top) / most, np.float32(0))
        codes = np.rint(values * np.expand_dims(factor, axis)).astype(dtype)
    return codes, most * (np.float32(1) / np.float32(top))


def decode(codes: Array, norms: Norms | None, axis: int) -> Array:
    """Return the values that are stored, float32 for codes."""
    with np.errstate(invalid="ignore"):
        return codes if norms is None else codes.astype(np.float32) * np.expand_dims(norms, axis)
