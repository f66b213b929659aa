"""A collection of matrices of many kinds, and the errors by which two answers are compared.

The yardstick is LAPACK's GESV; both answers are judged in extended precision.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import linalg
from scipy.io import mmread

from fewbits.solvers import factorize
from tests.solvers.systems import EPS, randsvd

Array = NDArray[Any]
Make = Callable[[int, np.random.Generator], Array]
KINDS: dict[str, list[Make]] = {}
ALLOWED = 10  # times LAPACK's error; or a warning


def kind(name: str) -> Callable[[Make], Make]:
    """Enter a function that makes matrices of this kind."""

    def enter(make: Make) -> Make:
        KINDS.setdefault(name, []).append(make)
        return make

    return enter


def normal(n: int, rng: np.random.Generator) -> Array:
    found: Array = rng.standard_normal((n, n))
    return found


kind("random")(normal)
for _decades in (6, 12):
    kind("rows scaled")(lambda n, rng, d=_decades: normal(n, rng) * 10 ** rng.uniform(-d, d, (n, 1)))
    kind("columns scaled")(lambda n, rng, d=_decades: normal(n, rng) * 10 ** rng.uniform(-d, d, n))
    kind("rows and columns scaled")(
        lambda n, rng, d=_decades: (
            normal(n, rng) * 10 ** rng.uniform(-d, d, n) * 10 ** rng.uniform(-d, d, (n, 1))
        )
    )
for _condition in (1e2, 1e5, 1e8, 1e11, 1e14):
    for _mode in (2, 3):
        kind(f"condition {_condition:.0e}")(
            lambda n, rng, c=_condition, m=_mode: randsvd(c, m, n, int(rng.integers(1000)))
        )


@kind("mixed units")
def _units(n: int, rng: np.random.Generator) -> Array:
    return normal(n, rng) * np.where(rng.random(n) < 0.5, 1e9, 1.0)


@kind("mixed units")
def _units_of_both(n: int, rng: np.random.Generator) -> Array:
    unit = np.where(np.arange(n) % 2 > 0, 1e9, 1.0)
    found: Array = unit[:, None] * (normal(n, rng) + 2 * n**0.5 * np.eye(n)) * unit
    return found


@kind("graded")
def _graded(n: int, rng: np.random.Generator) -> Array:
    scales = np.logspace(0, -12, n)
    return normal(n, rng) * np.minimum(scales[:, None], scales)


@kind("graded")
def _graded_up(n: int, rng: np.random.Generator) -> Array:
    return _graded(n, rng)[::-1, ::-1].copy()


def saddle(n: int, rng: np.random.Generator, weights: Array) -> Array:
    m = n // 3
    b = rng.standard_normal((m, n - m)) * (rng.random((m, n - m)) < 0.05) + np.eye(m, n - m)
    return np.block([[np.diag(weights[: n - m]), b.T], [b, np.zeros((m, m))]])


kind("saddle point")(lambda n, rng: saddle(n, rng, 1 + rng.random(n)))
kind("saddle point")(lambda n, rng: saddle(n, rng, 10 ** rng.uniform(-8, 8, n)))
kind("diagonally dominant")(lambda n, rng: normal(n, rng) + 4 * n**0.5 * np.eye(n))


@kind("banded")
def _banded(n: int, rng: np.random.Generator) -> Array:
    found: Array = np.triu(np.tril(normal(n, rng), 5), -5)
    return found


@kind("permuted")
def _permuted(n: int, rng: np.random.Generator) -> Array:
    return (_banded(n, rng) + 9 * np.eye(n))[rng.permutation(n)][:, rng.permutation(n)]


@kind("arrow")
def _arrow(n: int, rng: np.random.Generator) -> Array:
    found = np.diag(1 + rng.random(n))
    found[0], found[:, 0] = 1e6 * rng.standard_normal(n), rng.standard_normal(n)
    return found


kind("triangular")(lambda n, rng: np.tril(normal(n, rng), -1) / n + np.diag(1 + rng.random(n)))
kind("triangular")(lambda n, rng: np.triu(normal(n, rng)) + 2 * np.eye(n))


@kind("sparse")
def _circuit(n: int, rng: np.random.Generator) -> Array:
    """Few entries of very different sizes, as in circuits."""
    there = rng.random((n, n)) < 3 / n
    found: Array = there * rng.standard_normal((n, n)) * 10 ** rng.uniform(-6, 3, (n, n))
    return found + np.diag(10 ** rng.uniform(-3, 3, n))


@kind("stiffness")
def _stiffness(n: int, rng: np.random.Generator) -> Array:
    """Bars in a plane of very different stiffness, supported at one end."""
    side = max(2, int(n**0.5))
    places = np.arange(side * side).reshape(side, side)
    pairs = np.r_[
        np.c_[places[:, 1:].ravel(), places[:, :-1].ravel()], np.c_[places[1:].ravel(), places[:-1].ravel()]
    ]
    found = np.zeros((side * side, side * side))
    for (i, j), k in zip(pairs, 10 ** rng.uniform(-4, 5, len(pairs)), strict=True):
        found[[i, j], [i, j]] += k
        found[[i, j], [j, i]] -= k
    found[places[0], places[0]] += 1.0
    return found


@kind("kernel")
def _kernel(n: int, rng: np.random.Generator) -> Array:
    points = rng.random((n, 3))
    found: Array = np.exp(-np.square(points[:, None] - points).sum(2) / 0.02) + 1e-2 * np.eye(n)
    return found


@kind("Green's operator")
def _green(n: int, rng: np.random.Generator) -> Array:
    points = rng.random((n, 3))
    distance = np.sqrt(np.square(points[:, None] - points).sum(2)) + np.eye(n)
    found: Array = np.where(np.eye(n) > 0, 2.4 * n ** (1 / 3), 1 / distance)
    return found


@kind("growth of pivots")
def _growth(n: int, rng: np.random.Generator) -> Array:
    found = np.eye(n) - np.tril(np.ones((n, n)), -1)
    found[:, -1] = 1
    return found


kind("growth of pivots")(lambda n, rng: np.eye(n) - 0.3 * np.tril(normal(n, rng), -1) + _growth(n, rng))
kind("Hilbert")(lambda n, rng: linalg.hilbert(n))
kind("Toeplitz")(lambda n, rng: linalg.toeplitz(rng.standard_normal(n), rng.standard_normal(n)))
kind("Toeplitz")(lambda n, rng: linalg.toeplitz(0.5 ** np.arange(n)))
kind("companion")(lambda n, rng: linalg.companion(np.r_[1.0, rng.standard_normal(n)]))
kind("Hadamard")(lambda n, rng: linalg.hadamard(1 << (n - 1).bit_length()).astype(float))
kind("Vandermonde")(lambda n, rng: np.vander(np.cos(np.pi * (np.arange(n) + 0.5) / n)))
kind("Pascal")(lambda n, rng: linalg.pascal(min(n, 500), exact=False).astype(float))
kind("Leslie")(lambda n, rng: linalg.leslie(rng.random(n) + 0.1, rng.uniform(0.5, 1, n - 1)))
kind("Fiedler")(lambda n, rng: linalg.fiedler(np.sort(rng.random(n))))
kind("circulant")(lambda n, rng: linalg.circulant(rng.standard_normal(n)))
kind("Hankel")(lambda n, rng: linalg.hankel(rng.standard_normal(n), rng.standard_normal(n)))
kind("Helmert")(lambda n, rng: linalg.helmert(n, full=True))
kind("huge and tiny")(lambda n, rng: 1e300 * normal(n, rng))
kind("huge and tiny")(lambda n, rng: 1e-290 * normal(n, rng))
kind("orthogonal")(lambda n, rng: linalg.qr(normal(n, rng))[0])


@kind("singular")
def _dependent(n: int, rng: np.random.Generator) -> Array:
    found = normal(n, rng)
    found[:, n // 2] = found[:, 0] + found[:, 1]
    return found


@kind("singular")
def _neumann(n: int, rng: np.random.Generator) -> Array:
    found = 2 * np.eye(n) - np.eye(n, k=1) - np.eye(n, k=-1)
    found[0, 0] = found[-1, -1] = 1
    return found


kind("singular")(lambda n, rng: np.triu(normal(n, rng)))


def files(folder: Path) -> Iterator[tuple[str, str, Array]]:
    """Yield the matrices of the SuiteSparse collection that lie in a folder."""
    for path in sorted(folder.glob("matrices/*.mtx")):
        yield "SuiteSparse", path.stem, np.asarray(mmread(path).todense(), np.float64)


def matrices(n: int, seed: int = 0) -> Iterator[tuple[str, str, Array]]:
    """Yield (kind, name, matrix) of about n unknowns."""
    for name, makers in KINDS.items():
        for i, make in enumerate(makers):
            yield name, f"{name}, {i}, {n}", make(n, np.random.default_rng((seed, i, n)))


def right_sides(a: Array, seed: int = 0) -> dict[str, Array]:
    """Return a random right-hand side, that of a known solution, and a unit vector."""
    rng = np.random.default_rng(seed)
    unit = np.zeros(len(a))
    unit[len(a) // 3] = 1
    with np.errstate(over="ignore"):
        known = a @ rng.integers(-9, 10, len(a)).astype(float)
    scale = np.abs(a).max()
    return {"random": scale * rng.standard_normal(len(a)), "known": known, "unit": scale * unit}


@dataclass(frozen=True)
class Comparison:
    """Two answers to one system: the componentwise backward errors and the 2-norms of residuals over |b|."""

    kind: str
    name: str
    side: str
    unknowns: int
    path: str
    componentwise: float
    componentwise_of_lapack: float
    residual: float
    residual_of_lapack: float
    warned: bool

    @property
    def ratio(self) -> float:
        """How much larger our errors are than LAPACK's; none is smaller than what rounding x leaves."""
        floor = EPS * self.residual_of_rounding
        first = self.componentwise / max(self.componentwise_of_lapack, EPS)
        second = self.residual / max(self.residual_of_lapack, floor)
        return max(first, second)

    residual_of_rounding: float = 0.0  # | |A| |x| + |b| | / |b|

    @property
    def sound(self) -> bool:
        """Whether it is at most ``ALLOWED``, or a warning was given."""
        return self.ratio <= ALLOWED or self.warned


def errors(a: Array, x: Array, b: Array) -> tuple[float, float, float]:
    """Return the componentwise error, and |b - A x| and | |A| |x| + |b| | over |b| in the 2-norm.

    In extended precision.
    """
    if not np.isfinite(x).all():
        return np.inf, np.inf, np.inf
    wide = x.astype(np.longdouble)
    r, sizes = np.empty(len(a), np.longdouble), np.empty(len(a), np.longdouble)
    for part in (slice(i, i + 64) for i in range(0, len(a), 64)):
        rows = a[part].astype(np.longdouble)
        r[part] = b[part] - rows @ wide
        sizes[part] = np.abs(rows) @ np.abs(wide) + np.abs(b[part])
    worst = np.where(r == 0, 0, np.abs(r) / np.where(sizes == 0, 1, sizes)).max()
    length = np.sqrt(np.square(b.astype(np.longdouble)).sum())
    return (
        float(worst),
        float(np.sqrt(np.square(r).sum()) / length),
        float(np.sqrt(np.square(sizes).sum()) / length),
    )


def compared(
    kind: str, name: str, a: Array, side: str, b: Array, precision: str = "auto"
) -> Comparison | None:
    """Solve a system both ways; None where both find that it has no solution."""
    (gesv,) = linalg.get_lapack_funcs(("gesv",), (a, b))
    *_, theirs, failed = gesv(a, b)
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        try:
            found = factorize(a, precision).solve(b)
        except ValueError:  # a pivot of zero
            return None
    assert all(issubclass(w.category, RuntimeWarning) for w in said), [str(w.message) for w in said]
    path = " ".join(f"{s.precision}:{s.code}" for s in found.stages)
    ours = errors(a, found.x, b)
    of_lapack = (np.inf, np.inf) if failed else errors(a, theirs, b)[:2]
    return Comparison(
        kind, name, side, len(a), path, ours[0], of_lapack[0], ours[1], of_lapack[1], bool(said), ours[2]
    )
