"""GPFQ: error diffusion along the inputs of a layer, each weight chosen for the error so far."""

from __future__ import annotations

import torch
from torch import Tensor

from fewbits.ptq.gptq import Nearest


def gpfq(w: Tensor, gram: Tensor, cross: Tensor, nearest: Nearest) -> Tensor:
    """Choose the values of a matrix one column after the other, each to make up for the error so far.

    Lybrand and Saab, "A Greedy Algorithm for Quantizing Neural Networks", JMLR 2021, equations 2 and 3, with
    a given set of values; Zhang, Zhou, Saab, "Post-training Quantization for Neural Networks with Provable
    Guarantees", SIAM J. Math. Data Sci. 2023. With u the error of the outputs before column t, which has the
    inputs X_t, rounded Y_t, the value is the nearest one to <Y_t, u + w_t X_t> / <Y_t, Y_t>: sums over inputs
    that the two matrices hold already. A column whose inputs are all zero is rounded to nearest.

    Args:
        w: (rows, n) float64.
        gram: (n, n) float64, the sum of y y^T over the inputs y as the layer will take them.
        cross: (n, n) float64, the sum of y x^T, x being the inputs before they are rounded.
        nearest: rounds columns of the matrix.

    Returns:
        (rows, n) float64, values that ``nearest`` gave.
    """
    chosen = torch.empty_like(w)
    for t in range(w.shape[1]):
        power = gram[t, t]
        aim = w[:, t]
        if power > 0:
            aim = (w[:, : t + 1] @ cross[t, : t + 1] - chosen[:, :t] @ gram[t, :t]) / power
        chosen[:, t] = nearest(aim[:, None], torch.tensor([t], device=w.device))[:, 0]
    return chosen
