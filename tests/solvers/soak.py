"""Random linear systems of many kinds, and an independent judge of what a Krylov solver claims of them."""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import scipy.sparse as sp
import torch
from scipy.sparse.linalg import LinearOperator, spilu

from fewbits.errors import FewbitsError
from fewbits.solvers import bicgstab, cg, gcr, gmres, lsqr, minres

SOLVERS: dict[str, Any] = {
    "cg": cg, "minres": minres, "bicgstab": bicgstab, "gmres": gmres, "gcr": gcr, "lsqr": lsqr,
}  # fmt: skip
PRECISIONS = (
    "auto",
    "double",
    "single",
    "fp32/quda_half",
    "half",
    "scaled_fp16",
    "fp32/bf16",
    "mxint8",
    "fp16",
)
KINDS = (
    "definite",
    "indefinite",
    "general",
    "singular",
    "zero rows",
    "graded",
    "skew",
    "laplacian",
    "zero",
    "wide",
)
HERMITIAN = ("definite", "indefinite", "singular", "laplacian", "zero")
LAYOUTS = (
    "dense", "list", "integers", "csr", "csc", "coo", "bsr", "dia", "dok", "lil", "csr_matrix", "coo_matrix",
    "torch", "torch coo", "torch csr", "LinearOperator", "function",
)  # fmt: skip


@dataclass(frozen=True)
class Case:
    """One system: A and b as the solver gets them, and as the judge does."""

    a: Any
    b: Any
    dense: Any
    columns: Any
    solver: str
    options: dict[str, Any]
    kind: str
    layout: str


def matrix(kind: str, n: int, rng: Any, *, complex_: bool) -> Any:
    def normal(*shape: int) -> Any:
        return rng.standard_normal(shape) + (1j * rng.standard_normal(shape) if complex_ else 0)

    if kind == "laplacian":
        line = 2 * np.eye(n) - np.eye(n, k=1) - np.eye(n, k=-1)
        return line + (1j * (np.eye(n, k=1) - np.eye(n, k=-1)) * 0.5 if complex_ else 0)
    if kind == "zero":
        return np.zeros((n, n), complex if complex_ else float)
    if kind == "wide":
        return normal(n, max(1, n + int(rng.integers(-3, 4))))
    if kind in ("general", "zero rows", "graded"):
        a = normal(n, n) + (rng.random() < 0.5) * 2 * math.sqrt(n) * np.eye(n)
        if kind == "zero rows":
            a[rng.integers(n)] = 0
        if kind == "graded":
            a = 10.0 ** rng.uniform(-6, 6, n)[:, None] * a * 10.0 ** rng.uniform(-3, 3, n)
        return np.where(rng.random(a.shape) < rng.choice([0.3, 1.0]), a, 0)
    if kind == "skew":
        a = normal(n, n)
        return a - a.conj().T
    q, _ = np.linalg.qr(normal(n, n))
    values = 10.0 ** rng.uniform(-rng.choice([1, 3, 8, 14]), 0, n)
    if kind == "indefinite":
        values *= rng.choice([-1, 1], n)
    if kind == "singular":
        values[: max(1, n // 4)] = 0
    a = (q * values) @ q.conj().T
    return (a + a.conj().T) / 2


def times(a: Any, v: Any) -> Any:
    with np.errstate(all="ignore"):
        return a @ v.reshape(-1)


def over(v: Any, d: Any) -> Any:
    with np.errstate(all="ignore"):
        return v.reshape(-1) / d


def laid_out(a: Any, layout: str, rng: Any) -> Any:
    """Return ``a`` in a layout; duplicates and explicit zeros are among the entries of a ``coo``."""
    if layout == "list":
        return a.tolist()
    if layout in ("csr", "csc", "bsr", "dia", "dok", "lil"):
        return getattr(sp, f"{layout}_array")(a)
    if layout == "coo":
        entries = sp.coo_array(a)
        rows, columns = (np.r_[c, c] for c in entries.coords)
        return sp.coo_array((np.r_[entries.data / 2, entries.data / 2], (rows, columns)), a.shape)
    if layout.endswith("_matrix"):
        return getattr(sp, layout)(a)
    if layout.startswith("torch"):
        tensor = torch.from_numpy(a.copy())
        if layout == "torch":
            return tensor
        return tensor.to_sparse() if layout == "torch coo" else tensor.to_sparse_csr()
    if layout == "LinearOperator":
        return LinearOperator(
            a.shape, lambda v: times(a, v), rmatvec=lambda v: times(a.conj().T, v), dtype=a.dtype
        )
    if layout == "function":
        return lambda v: times(a, v)
    return a


def cases(count: int, seed: int) -> Iterator[Case]:
    """Yield random systems, the same whatever their number."""
    return (case(i, seed) for i in range(count))


def case(i: int, seed: int) -> Case:
    """Return a random system: its kind, size, scale to 1e+-200, layout, solver and precision."""
    rng = np.random.default_rng([seed, i])
    kind, layout = str(rng.choice(KINDS)), str(rng.choice(LAYOUTS))
    n = int(rng.choice([1, 2, 3, 7, 12, 20]))
    complex_ = bool(rng.random() < 0.4)
    suited = list(SOLVERS) if kind in HERMITIAN or rng.random() < 0.1 else list(SOLVERS)[2:]
    solver = "lsqr" if kind == "wide" else str(rng.choice(suited))
    if solver == "lsqr" and layout == "function":
        layout = "csr"
    a = matrix(kind, n, rng, complex_=complex_ and layout != "integers")
    if layout == "integers":
        a = np.rint(3 * a / (abs(a).max() or 1)).astype(np.int64)
    elif rng.random() < 0.6:
        a = a * 10.0 ** rng.integers(-200, 201)
    many = () if rng.random() < 0.8 else (int(rng.integers(1, 4)),)
    b = rng.standard_normal((a.shape[0], *many))
    if complex_ and rng.random() < 0.7:
        b = b + 1j * rng.standard_normal(b.shape)
    if rng.random() < 0.5:
        with np.errstate(all="ignore"):
            x = rng.standard_normal((a.shape[1], *many))
            b = (a / (abs(a).max() or 1)) @ x
    b = b * (10.0 ** rng.integers(-200, 201) if rng.random() < 0.6 else 1.0)
    options: dict[str, Any] = {
        "precision": str(rng.choice(PRECISIONS)),
        "rtol": float(10.0 ** rng.uniform(-13, -2)),
        "maxiter": int(rng.choice([4, 50, 80])),
    }
    if solver != "lsqr" and rng.random() < 0.3:
        options["M"] = preconditioner(a, solver, rng)
    if rng.random() < 0.15:
        options["x0"] = rng.standard_normal((a.shape[1], *many)) * 10.0 ** rng.integers(-3, 4)
    if solver in ("cg", "bicgstab", "gcr") and rng.random() < 0.2:
        options["delta"] = None if rng.random() < 0.5 else float(rng.uniform(0.01, 0.9))
    given = laid_out(a, layout, rng)
    right = torch.from_numpy(b) if layout in ("torch", "torch coo") else b
    if isinstance(right, torch.Tensor) and "x0" in options:
        options["x0"] = torch.from_numpy(options["x0"])
    if isinstance(right, torch.Tensor) and callable(options.get("M")):
        del options["M"]
    return Case(given, right, a, b.reshape(len(b), -1), solver, options, kind, layout)


def preconditioner(a: Any, solver: str, rng: Any) -> Any:
    """Return Jacobi as a matrix, a function or a LinearOperator, or an incomplete factorization's solve."""
    d = np.abs(np.diag(a)).astype(float)
    d = np.where(d > 0, d, 1.0)
    which = rng.integers(4)
    if which == 0 and solver not in ("cg", "minres"):
        try:
            return spilu(sp.csc_array(a.astype(complex if a.dtype.kind == "c" else float))).solve
        except RuntimeError:  # singular
            return None
    if which == 1:
        return sp.diags_array(1 / d)
    if which == 2:
        return LinearOperator(a.shape, lambda v: over(v, d), dtype=float)
    return lambda v: over(v, d)


def outcome(case: Case) -> tuple[str, str]:
    """Return ``refused``, ``left``, ``solved`` or ``false``, and why.

    The judge's residual is computed in long double from A and b as they were made. A claim is false where
    that is above the tolerance by more than the judge's rounding, where x is not finite, or where what is
    returned is worse than zeros.
    """
    try:
        found = SOLVERS[case.solver](case.a, case.b, **case.options)
    except FewbitsError as error:
        return "refused", str(error)
    x = np.asarray(found.x).reshape(case.dense.shape[1], -1)
    if not np.isfinite(x).all():
        return "false", "x is not finite"
    results = found.columns or (found,)
    verdicts = [judged(case, x[:, k], case.columns[:, k], one) for k, one in enumerate(results)]
    wrong = [v for v in verdicts if v not in ("solved", "left")]
    if wrong:
        return "false", wrong[0]
    return ("solved" if found.converged else "left"), ""


def judged(case: Case, x: Any, b: Any, found: Any) -> str:
    wide = np.clongdouble
    a = case.dense.astype(wide)
    scale = np.longdouble(np.abs(case.dense).max() or 1.0)
    r = b.astype(wide) - a @ x.astype(wide)
    size, length = norm(b.astype(wide)), norm(r)
    tol = np.longdouble(case.options["rtol"])
    if "x0" not in case.options and length > size * np.longdouble(1 + 1e-12):
        return f"worse than zero: {length / size:.3e}"
    if not found.converged:
        return "left"
    # A function's product is in double precision: its own roundoff is what nobody can see.
    seen = found.residual * size
    hidden = 0 if case.layout not in ("LinearOperator", "function") else rounding(a, x.astype(wide), b)
    slack = np.longdouble(1 + 1e-9)
    if case.solver == "lsqr" and length > tol * size * slack + hidden:
        u = a / scale
        largest = np.linalg.norm((case.dense / float(scale)).astype(complex), 2)
        share = norm(u.conj().T @ r) / (np.longdouble(largest or 1) * length)
        fine = np.longdouble(share) <= tol * np.longdouble(1 + 1e-6) + 64 * len(b) * 2.0**-53
        return "solved" if fine else f"|A^H r| / (|A||r|) = {share:.3e} above {tol:.3e}"
    if length > tol * size * slack + hidden:
        return f"residual {length / size:.6e} above {tol:.6e}"
    if abs(seen - length) > 1e-6 * length + hidden + 1e-18 * size:
        return f"reports {found.residual:.6e}, is {length / size:.6e}"
    return "solved"


def rounding(a: Any, x: Any, b: Any) -> Any:
    return 2 * np.longdouble(2.0**-53) * (len(b) + 2) * norm(np.abs(a) @ np.abs(x) + np.abs(b))


def norm(v: Any) -> Any:
    largest = np.abs(v).max(initial=0)
    return largest * np.sqrt(np.sum(np.abs(v / largest) ** 2)) if largest > 0 else np.longdouble(0)
