"""How much faster are conjugate gradients and sparse products with 16 bits than with 64?

A three-dimensional Poisson problem with variable coefficients, solved to a true residual of 1e-10; ours in
double precision is fused in the same two passes. The peer is SciPy's solver with SciPy's matrix; beside it
stands SciPy's solver with our double product in place of a matrix. Then products with general sparse
matrices, beside SciPy's and PyTorch's in double precision. All in one process, alternating, medians; SciPy's
solvers run once.

    python benchmarks/solve_krylov.py [--side 192] [--scipy 1] [--rounds 5] [--json FILE]
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from functools import partial
from time import perf_counter
from typing import Any

import numpy as np
import scipy.sparse
import torch
from _alternating import arguments, seconds, table, write
from scipy.sparse.linalg import LinearOperator
from scipy.sparse.linalg import cg as scipy_cg

from fewbits.solvers import CompressedRows, Solution, Stencil, cg
from fewbits.solvers.krylov.space import rounding_format
from fewbits.solvers.precision import krylov_precision

PRECISIONS = (
    "double",
    "single",
    "scaled_fp16",
    "fp32/scaled_fp16",
    "site_int16/scaled_fp16",
    "site_int16",
    "fp32/site_int16",
)
DELTA = 0.1


def poisson(side: int) -> tuple[Stencil, torch.Tensor]:
    """Return a stencil whose coefficients vary by a factor of some ten, and a right-hand side."""
    rng = np.random.default_rng(0)
    k = np.exp(rng.standard_normal((side, side, side)) / 2)
    return Stencil.poisson(k), torch.from_numpy(rng.standard_normal(side**3))


def solvers(given: Any, rows: list[dict[str, Any]]) -> None:
    """Time the solvers."""
    a, b = poisson(given.side)
    names = tuple(given.formats.split(",")) if given.formats else PRECISIONS
    found: dict[str, Solution] = {}

    def solve(name: str) -> None:
        found[name] = cg(a, b, precision=name, delta=DELTA)

    taken = seconds({name: partial(solve, name) for name in dict.fromkeys(("double", *names))}, given.rounds)
    theirs = _scipy(a.to_scipy(), b) if given.scipy else None
    product = LinearOperator((a.n, a.n), _product(a), dtype=np.float64)
    matrix_free = _scipy(product, b) if given.scipy else None
    fastest = min(found, key=lambda name: taken[name])
    for name, result in found.items():
        assert result.converged, name
        rows.append(
            {
                "side": given.side,
                "precision": name,
                "seconds": taken[name],
                "iterations": result.iterations,
                "milliseconds": 1000 * taken[name] / result.iterations,
                "of_double": taken["double"] / taken[name],
                "iterations_of_double": result.iterations / found["double"].iterations,
                "of_scipy": None if theirs is None else theirs / taken[name],
                "of_scipy_with_our_product": None if matrix_free is None else matrix_free / taken[name],
                "residual": f"{result.residual:.1e}",
                "fastest": name == fastest,
            }
        )
    heads = ("side", "precision", "s", "iterations", "ms each", "times double", "iterations of double's")
    heads = (*heads, "times scipy", "times scipy with our product", "residual")
    table(heads, [tuple(row.values())[: len(heads)] for row in rows])


def _product(a: Stencil) -> Callable[[Any], Any]:
    return lambda v: a.exact(torch.from_numpy(v)).numpy()


def _scipy(matrix: Any, b: torch.Tensor) -> float:
    start = perf_counter()
    _, failed = scipy_cg(matrix, b.numpy(), rtol=1e-10)
    assert not failed
    return perf_counter() - start


def matrices() -> dict[str, Any]:
    """Return general sparse matrices of some hundred MiB in double precision."""
    rng = np.random.default_rng(0)
    n, near = 1 << 20, 24
    columns = np.clip(np.arange(n)[:, None] + rng.integers(-3000, 3000, (n, near)), 0, n - 1)
    band = scipy.sparse.csr_array(
        (rng.standard_normal(n * near), columns.ravel(), np.arange(0, n * near + 1, near)), shape=(n, n)
    )
    band.sum_duplicates()
    line = scipy.sparse.diags_array([1.0, 1.0, 1.0], offsets=[-1, 0, 1], shape=(100, 100))
    box = scipy.sparse.kron(scipy.sparse.kron(line, line), line).tocsr()
    box.data = rng.standard_normal(len(box.data))
    return {"7 points": poisson(128)[0].to_scipy(), "27 points": box, "random in a band": band}


def products(given: Any, rows: list[dict[str, Any]]) -> None:
    """Time products."""
    for name, matrix in matrices().items():
        ours = CompressedRows(matrix)
        v = torch.randn(ours.n)
        wide, double = v.double(), v.double().numpy()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # that sparse tensors of PyTorch are in beta
            peer = torch.sparse_csr_tensor(
                torch.from_numpy(matrix.indptr),
                torch.from_numpy(matrix.indices),
                torch.from_numpy(matrix.data),
                matrix.shape,
            )
        calls: dict[str, Any] = {
            "scipy": lambda m=matrix, d=double: m @ d,
            "torch": lambda p=peer, w=wide: p @ w,
        }
        for precision in ("scaled_fp16", "site_int16", "single"):
            product = ours.rounded(rounding_format(krylov_precision(precision).matrix))
            calls[precision] = partial(product, v)
        taken = seconds(calls, given.rounds)
        best = min(taken["scipy"], taken["torch"])
        bytes_ = len(matrix.data) * 12
        for precision in ("scipy", "torch", "scaled_fp16", "site_int16", "single"):
            rows.append(
                {
                    "matrix": name,
                    "precision": precision
                    if precision not in ("scipy", "torch")
                    else f"double ({precision})",
                    "milliseconds": 1000 * taken[precision],
                    "of_double": best / taken[precision],
                    "double_gigabytes_per_second": bytes_ / taken[precision] / 1e9,
                }
            )
    table(
        ("matrix", "precision", "ms", "times the faster double", "GB/s of double's bytes"),
        [tuple(r.values()) for r in rows],
    )


def main() -> None:
    """Print both tables and write the figures."""
    given = arguments(__doc__ or "", side=192, scipy=0)
    solved: list[dict[str, Any]] = []
    multiplied: list[dict[str, Any]] = []
    solvers(given, solved)
    print()
    products(given, multiplied)
    write(given.json, solved + multiplied)


if __name__ == "__main__":
    main()
