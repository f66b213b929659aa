"""Products of float32 matrices whose operands are rounded or split first, with float32 sums."""

from __future__ import annotations

from collections.abc import Callable

import torch

from fewbits import kernels
from fewbits.kernels import ops
from fewbits.tensor import fake_quantize

_TERMS = {"bf16": 1, "bf16x2": 2, "bf16x3": 3}
_ROUNDINGS = {"fp16": "nearest_even", "tf32": "nearest_away"}


def product(factor: str) -> Callable[[torch.Tensor, torch.Tensor], torch.Tensor]:
    """Return the function that multiplies float32 matrices, (m, k) times (k, n), as ``factor`` says."""
    if factor in _TERMS:
        return lambda a, b: _split_product(a, b, _TERMS[factor])
    if factor in _ROUNDINGS:
        rounding = _ROUNDINGS[factor]
        return lambda a, b: torch.matmul(
            fake_quantize(a, factor, rounding=rounding), fake_quantize(b, factor, rounding=rounding)
        )
    return torch.matmul


def _split_product(a: torch.Tensor, b: torch.Tensor, terms: int) -> torch.Tensor:
    """Return the sum of the products of terms whose orders add up to less than ``terms``."""
    left, right = _split(a, terms), _split(b, terms)
    pairs = [(i, order - i) for order in reversed(range(terms)) for i in range(order + 1)]
    # Side by side along the reduction axis: one product, one float32 sum.
    return _multiply(torch.cat([left[i] for i, _ in pairs], 1), torch.cat([right[j] for _, j in pairs], 0))


def _split(x: torch.Tensor, terms: int) -> list[torch.Tensor]:
    """Return bfloat16 values in float32 whose sum is x but for what the last of them rounds off."""
    found = []
    for _ in range(terms):
        term = x.bfloat16().float()
        found.append(term)
        x = x - term  # exact
    return found


def _multiply(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    found: torch.Tensor = (
        ops.bfloat16_product(a, b) if kernels.has_bfloat16_products() else torch.matmul(a, b)
    )
    return found
