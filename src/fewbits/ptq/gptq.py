"""GPTQ: what one weight loses by rounding is made up for by the weights that are not rounded yet."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

_LAZY = 128  # columns after which the others take what was lost, in one product

Nearest = Callable[[Tensor, Tensor], Tensor]
"""``nearest(w, columns)``: the values that may be stored nearest to w, (rows, k), in these k columns."""


def gptq(w: Tensor, hessian: Tensor, nearest: Nearest, *, damping: float = 0.01) -> Tensor:
    """Choose the values of a matrix one column after the other, such that its products change little.

    Frantar, Ashkboos, Hoefler, Alistarh, "GPTQ: Accurate Post-Training Quantization for Generative
    Pre-trained Transformers", ICLR 2023, algorithm 1; columns in falling order of the Hessian's diagonal.

    Args:
        w: (rows, n) float64.
        hessian: (n, n) float64, the sum of x x^T over the inputs x, in any unit.
        nearest: rounds columns of the matrix.
        damping: what is added to the diagonal, as a fraction of its mean.

    Returns:
        (rows, n) float64, values that ``nearest`` gave.
    """
    order = torch.argsort(hessian.diagonal(), descending=True, stable=True)
    upper = _inverse_factor(hessian, order, damping)
    n = len(order)
    columns = w.t()[order]  # each lies in one piece, as do those of what is chosen
    chosen = torch.empty_like(columns)
    for start in range(0, n, _LAZY):
        stop = min(start + _LAZY, n)
        lost = torch.empty_like(columns[start:stop])
        for j in range(start, stop):
            value = nearest(columns[j : j + 1].t(), order[j : j + 1]).t()
            chosen[order[j]] = value[0]
            share = (columns[j : j + 1] - value) / upper[j, j]
            columns[j:stop] -= upper[j, j:stop, None] * share
            lost[j - start] = share[0]
        columns[stop:] -= upper[start:stop, stop:].t() @ lost
    return chosen.t().contiguous()


def _inverse_factor(hessian: Tensor, order: Tensor, damping: float) -> Tensor:
    """Return the upper Cholesky factor of the inverse of the damped Hessian, rows and columns in an order.

    Where rounding leaves it without one, as with fewer inputs than columns and no damping, the damping grows.
    Two matrices of the size of the Hessian are in memory beside it at most.
    """
    damped = hessian[order[:, None], order].add_(0.0)  # which makes zeros positive
    mean = float(damped.diagonal().mean()) or 1.0
    added = damping * mean
    while True:
        damped.diagonal().add_(added)
        lower, failed = torch.linalg.cholesky_ex(damped)
        del damped
        inverse = None if failed else torch.cholesky_inverse(lower)
        del lower
        if inverse is not None:
            upper, failed = torch.linalg.cholesky_ex(inverse, upper=True)
            del inverse
            if not failed:
                factor: Tensor = upper
                return factor
            del upper
        added = max(10 * added, 1e-8 * mean)
        damped = hessian[order[:, None], order].add_(0.0)
