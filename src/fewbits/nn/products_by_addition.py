"""Products without multiplications: Mogami, Deep Neural Network Training Without Multiplications, 2020."""

from __future__ import annotations

import math

import torch

from fewbits.kernels import ops


def product_by_addition(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """Return ``a @ b`` of float32 tensors, (..., m, k) and (..., k, n), by sums of bits.

    Sums are float32, in the order of k; the definition is :mod:`fewbits.kernels.reference.additions`.
    """
    if a.ndim == b.ndim == 2:
        result: torch.Tensor = ops.addition_product(a, b)
        return result
    front = torch.broadcast_shapes(a.shape[:-2], b.shape[:-2])
    count = math.prod(front)
    lefts = a.expand(*front, *a.shape[-2:]).reshape(count, *a.shape[-2:])
    rights = b.expand(*front, *b.shape[-2:]).reshape(count, *b.shape[-2:])
    parts = [ops.addition_product(x, y) for x, y in zip(lefts, rights, strict=True)]
    shape = (*front, a.shape[-2], b.shape[-1])
    return torch.stack(parts).reshape(shape) if parts else a.new_zeros(shape)
