"""GPTQ and GPFQ as their papers write them, in NumPy and float64, without any trick; and MXFP4's values."""

import numpy as np
from numpy.typing import NDArray

Reals = NDArray[np.float64]
E2M1 = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6])
BLOCK = 32


def mxfp4_scales(w: Reals) -> Reals:
    """The scale of each value: 2^(floor(log2 largest) - 2) of its block of 32 along the row."""
    scales = np.empty_like(w)
    for i in range(w.shape[0]):
        for start in range(0, w.shape[1], BLOCK):
            block = w[i, start : start + BLOCK]
            exponent = np.frexp(np.abs(block).max())[1] - 1
            scales[i, start : start + BLOCK] = 2.0 ** (exponent - 2)
    return scales


def e2m1(x: Reals) -> Reals:
    """The nearest E2M1 values; the lower of two as near, which the tests do not draw."""
    return np.copysign(E2M1[np.argmin(np.abs(E2M1 - np.abs(x)[:, None]), axis=1)], x)


def gptq(w: Reals, hessian: Reals, scales: Reals, damping: float, order: NDArray[np.intp]) -> Reals:
    """Frantar et al., equations 2 and 3: the inverse of the Hessian that is left, anew for each column."""
    w, chosen = w.copy(), np.zeros_like(w)
    damped = hessian + damping * hessian.diagonal().mean() * np.eye(len(hessian))
    left = list(order)
    while left:
        inverse = np.linalg.inv(damped[np.ix_(left, left)])
        j = left[0]
        chosen[:, j] = scales[:, j] * e2m1(w[:, j] / scales[:, j])
        w[:, left] -= np.outer((w[:, j] - chosen[:, j]) / inverse[0, 0], inverse[0])
        left = left[1:]
    return chosen


def gpfq(w: Reals, X: Reals, Y: Reals, scales: Reals) -> Reals:
    """Lybrand and Saab: walk the columns with the error u of all samples; X and Y (samples, n)."""
    chosen = np.zeros_like(w)
    u = np.zeros((len(w), len(X)))  # of each output, the error of each sample
    for t in range(w.shape[1]):
        u = u + np.outer(w[:, t], X[:, t])
        power = Y[:, t] @ Y[:, t]
        aim = u @ Y[:, t] / power if power else w[:, t]
        chosen[:, t] = scales[:, t] * e2m1(aim / scales[:, t])
        u = u - np.outer(chosen[:, t], Y[:, t])
    return chosen
