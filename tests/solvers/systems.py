"""Systems whose difficulty is known, and the check that no answer is worse than LAPACK's."""

import math
import warnings
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fewbits.solvers import factorize

N = 320
Array = NDArray[Any]
EPS = 2.0**-53


def randsvd(condition: float, mode: int, n: int = N, seed: int = 0) -> Array:
    """Return a matrix of random singular vectors; modes of singular values as in LAPACK's DLATMS."""
    generator = np.random.default_rng(seed)
    values = {
        1: np.r_[1.0, np.full(n - 1, 1 / condition)],
        2: np.r_[np.ones(n - 1), 1 / condition],
        3: np.logspace(0, -np.log10(condition), n),
        4: np.linspace(1, 1 / condition, n),
        5: np.exp(generator.uniform(-np.log(condition), 0, n)),
    }[mode]
    left, _ = np.linalg.qr(generator.standard_normal((n, n)))
    right, _ = np.linalg.qr(generator.standard_normal((n, n)))
    found: Array = left * values @ right
    return found


def backward_error(a: Array, x: Array, b: Array) -> float:
    """Return the normwise backward error, with the residual in long double."""
    wide = a.astype(np.longdouble)
    r = np.abs(b.astype(np.longdouble) - wide @ x.astype(np.longdouble)).max()
    return float(r / (np.abs(a).sum(1).max() * np.abs(x).max() + np.abs(b).max()))


def checked(a: Array, precision: str = "auto", seed: int = 1, assume_a: str = "gen") -> Any:
    b = np.random.default_rng(seed).standard_normal(len(a))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)  # singular to working precision, where it is meant
        found = factorize(a, precision, assume_a=assume_a).solve(b)
    reference = backward_error(a, np.linalg.solve(a, b), b)
    assert backward_error(a, found.x, b) <= max(math.sqrt(len(a)) * EPS, reference)
    return found
