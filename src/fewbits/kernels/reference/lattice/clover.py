"""A spinor times the Hermitian blocks of a clover term: the definition.

Sheikholeslami and Wohlert, Improved continuum limit lattice action for QCD with Wilson fermions, 1985. Of the
four spins the upper two and the lower two have a 6x6 block each, rows and columns counting spin before
colour. A block is 36 numbers: the diagonal, then real and imaginary parts of what is below it, row by row.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]


def multiply(values: Array, norms: Array | None, psi: Array) -> Array:
    """Return the blocks times psi in the dtype of psi, each operation rounded, in this order.

    Args:
        values: (..., 2, 36), floats or codes.
        norms: (..., 2) float32, which codes are multiplied by; else None.
        psi: (..., 24), real and imaginary parts of 4 spins and 3 colours.
    """
    numbers = values.astype(psi.dtype)
    x = psi.reshape(*psi.shape[:-1], 2, 6, 2)
    re, im = x[..., 0], x[..., 1]
    out_re, out_im = numbers[..., :6] * re, numbers[..., :6] * im
    for k, (i, j) in enumerate(zip(*np.tril_indices(6, -1), strict=True)):
        a, b = numbers[..., 6 + 2 * k], numbers[..., 7 + 2 * k]
        out_re[..., i] += a * re[..., j] - b * im[..., j]
        out_im[..., i] += a * im[..., j] + b * re[..., j]
        out_re[..., j] += a * re[..., i] + b * im[..., i]
        out_im[..., j] += a * im[..., i] - b * re[..., i]
    product = np.stack([out_re, out_im], -1)
    if norms is not None:
        product *= norms[..., None, None]
    return product.reshape(psi.shape)
