"""Products: a packed matrix with vectors, matrices of bfloat16 values, and without multiplications."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from fewbits.formats import Format
from fewbits.formats.pattern import Pattern
from fewbits.kernels import native
from fewbits.kernels.arrays.conversions import dequantize
from fewbits.kernels.arrays.nm import expand, zeros
from fewbits.kernels.arrays.threads import threads
from fewbits.kernels.arrays.values import smallest
from fewbits.kernels.bits.layout import Packed
from fewbits.kernels.bits.memory import empty_aligned
from fewbits.kernels.native import exact_arithmetic

Array = NDArray[Any]

SMALLEST_NORMAL = 2.0**-126  # of bfloat16 and float32


@exact_arithmetic()
def gemv(
    x: Array,
    q: Packed,
    format: Format,
    lines: int,
    sparsity: Pattern | None = None,
    *,
    bfloat16: bool = False,
    out: Array | None = None,
) -> Array:
    """Return ``x @ W.T`` for a packed W of shape (lines, n) with its blocks along n.

    Meant for few rows of ``x``, (batch, n) float32: W is decoded once for every sixteen rows, in registers or
    the nearest cache, never to memory. Sums are float32; with u = 2^-24, the error is at most (n + 2) u sum
    |x| |W|. With ``sparsity`` the codes of W are streams; the result equals that of the dense W bit for bit.
    ``bfloat16`` says that every value of x is a bfloat16. ``out``, if given, is (batch, lines) float32 in C
    order and is overwritten with the result, as in the other products.
    """
    y = empty_aligned((x.shape[0], lines), np.float32) if out is None else out
    if x.size and lines and native.supports_product(format):
        bfloat16 = bfloat16 and smallest(x) >= SMALLEST_NORMAL
        zero = 0 if sparsity is None else zeros(format)[0]
        whole = np.ascontiguousarray(x)
        native.gemv(whole, q, y, format, sparsity, zero, bfloat16=bfloat16, threads=threads())
        return y
    if sparsity is not None:
        q = q._replace(codes=expand(q.codes, format, x.shape[1], sparsity))
    return np.matmul(x, dequantize(q, format, (lines, x.shape[1]), 1, np.float32).T, out=y)


def has_bfloat16_products() -> bool:
    """Return whether :func:`bfloat16_product` runs on this CPU."""
    return native.has_bfloat16_products()


def bfloat16_product(a: Array, b: Array, out: Array | None = None) -> Array:
    """Return ``a @ b``, summed in float32, for float32 matrices of normal bfloat16 values and zeros."""
    y = empty_aligned((a.shape[0], b.shape[1]), np.float32) if out is None else out
    native.bfloat16_product(np.ascontiguousarray(a), np.ascontiguousarray(b), y, threads=threads())
    return y


def addition_product(a: Array, b: Array, out: Array | None = None) -> Array:
    """Return ``a @ b`` of float32 matrices, each product one integer sum of bit patterns.

    Equal to :func:`fewbits.kernels.reference.gemm.additions.product`, which is the definition, bit for bit.
    """
    y = empty_aligned((a.shape[0], b.shape[1]), np.float32) if out is None else out
    native.addition_product(np.ascontiguousarray(a), np.ascontiguousarray(b), y, threads=threads())
    return y
