"""Products of packed tensors with ordinary ones.

Gradients flow to the ordinary operand: torch differentiates a product into products with the same packed
tensor.
"""

from __future__ import annotations

import torch

from fewbits.tensor.narrow import NarrowTensor


def linear(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
    """Return ``x @ weight.T + bias``.

    Args:
        x: (..., k), packed or ordinary.
        weight: (n, k), packed or ordinary.
        bias: (n,), ordinary; None for none.

    Returns:
        (..., n), ordinary.
    """
    return torch.nn.functional.linear(_dense(x), _dense(weight), bias)


def matmul(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """Return ``a @ b`` by the rules of torch.matmul; either or both may be packed."""
    return torch.matmul(_dense(a), _dense(b))


def _dense(x: torch.Tensor) -> torch.Tensor:
    return x.dense() if isinstance(x, NarrowTensor) else x
