"""Few vectors times a packed matrix, straight from the kernel, where torch would do nothing else."""

from __future__ import annotations

from typing import Any

import torch

from fewbits.formats import Format
from fewbits.kernels.ops import at_once


def times_lines(x: torch.Tensor, q: Any, axis: int, activation: Format | None = None) -> torch.Tensor | None:
    """Return the products of the vectors of ``x``, (..., k), with the lines of a NarrowTensor along ``axis``.

    Vectors are rounded to ``activation`` first, if it is one.

    None where shapes or dtypes are others than of vectors and a matrix of all values of one dtype, where
    autograd or a mode is to see the product, and where so many vectors are better off with unpacked lines.
    """
    if torch.compiler.is_compiling() or type(x) not in at_once.PLAIN:
        return None
    if q.axis != axis or q.sparsity is not None or q.dtype is not x.dtype:
        return None
    size = q.shape
    if len(size) != 2:
        return None
    return at_once.gemv(x, q.pieces, q.format, size[1 - axis], size[axis], activation)
