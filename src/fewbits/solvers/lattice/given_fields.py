"""Fields of a lattice as users give them."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from fewbits.errors import ArgumentError, DataError
from fewbits.solvers.operators.vectors import refuse_mask


def described(given: object) -> str:
    """Return what a message says of what was given: dtype and shape of an array, else its type."""
    return f"{given.dtype} {given.shape}" if isinstance(given, np.ndarray) else type(given).__name__


def read_field(given: object, shape: tuple[int, ...], kind: str, axes: str) -> NDArray[np.float64]:
    """Return a field of ``shape`` in double precision, (..., 2 shape[-1]): real and imaginary parts in turn.

    ``kind`` and ``axes`` are words for messages: "spinor field", "spin, colour".

    Raises:
        ArgumentError: no array of numbers, or another shape.
        DataError: NaN or infinity, or a number beyond double precision.
    """
    refuse_mask(given, f"a {kind}")
    if not isinstance(given, np.ndarray) or given.shape != shape or given.dtype.kind not in "fc":
        raise ArgumentError(f"a {kind} is {described(given)}; expected complex {shape}, (T, Z, Y, X, {axes})")
    with np.errstate(over="ignore"):
        values: NDArray[Any] = np.ascontiguousarray(given, np.complex128).view(np.float64)
    if not np.isfinite(values).all():
        raise DataError(f"the {kind} holds NaN or infinity in double precision; remove them first")
    return values
