"""How a spinor becomes integers with a norm for each site, and back: the definition.

Clark et al., Solving Lattice QCD systems of equations using mixed precision solvers on GPUs, 2010.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from fewbits.kernels.bits.lattice import INTEGER_MAX

Array = NDArray[Any]

SMALLEST = 2.0**-100  # a site whose largest magnitude lies below is kept as zeros


def encode_spinors(psi: Array, dtype: Any) -> tuple[Array, NDArray[np.float32] | None]:
    """Return float32 spinors, (..., 24) reals, as they are stored: codes of that shape and norms, (...).

    The norm is a site's largest magnitude over 32767 or 127, and a code the integer next to the value times
    32767 or 127 over that magnitude, ties to even; all of it in float32.
    """
    top = INTEGER_MAX.get(np.dtype(dtype).name)
    if top is None:
        return psi.astype(dtype), None
    psi = psi.astype(np.float32)
    most = np.abs(psi).max(-1)
    most = np.where(most >= np.float32(SMALLEST), most, np.float32(0))
    with np.errstate(divide="ignore"):
        factor = np.where(most > 0, np.float32(top) / most, np.float32(0))
    return np.rint(psi * factor[..., None]).astype(dtype), most * (np.float32(1) / np.float32(top))


def decode_spinors(codes: Array, norms: NDArray[np.float32] | None) -> Array:
    """Return the values that stored spinors mean, in float32 for codes."""
    return codes if norms is None else codes.astype(np.float32) * norms[..., None]
