"""Least squares: a narrow QR factorization, refined through the augmented system to double accuracy."""

from __future__ import annotations

import math
import time
import warnings
from collections.abc import Callable, Sequence

import numpy as np
import torch
from scipy import linalg

from fewbits.errors import ArgumentError
from fewbits.records import Stage
from fewbits.solvers.dense import condition_probe, qr
from fewbits.solvers.dense.arrays import as_given, check_finite, checked_columns, tensor
from fewbits.solvers.dense.plan import pays, precisions
from fewbits.solvers.dense.refinement import EPS, MOST_STEPS
from fewbits.solvers.dense.system import exponents_of, residuals, times_power
from fewbits.solvers.precision import Precision, roundoff
from fewbits.solvers.solution import REASONS, Solution
from fewbits.typing import AnyArray, Array, Watch

_FAR = 200  # exponents up to which sums of squares, and products of them, are within double precision
_OUTSIDE = "x, or what counts of it, is outside the normal numbers of double precision; scale A or b"


def lstsq(
    A: AnyArray | Sequence[Sequence[complex]],
    b: Array,
    *,
    precision: str | Precision = "auto",
    watch: Watch | None = None,
) -> Solution[Array]:
    """Find the x that minimizes the 2-norm of b - A x, as accurate as double precision makes it.

    The columns of A are scaled by powers of two, and A is factorized in a narrow format. Solution and
    residual are refined together, with the residuals of the augmented system in float64 (Bjorck, Iterative
    Refinement of Linear Least Squares Solutions I, 1967). Refinement converges when a correction is no larger
    than rounding A and b once would cause: sqrt(m) 2^-53 k (|x| + |r| / |A|), where k is the condition number
    of R. If it does not, as with a large residual and an ill-conditioned A, the factorization is repeated in
    double precision. A matrix with more columns than rows, or with linearly dependent columns, has many
    solutions; the one of least norm is returned, from LAPACK's GELSD in double precision with the same rule
    for the rank as NumPy.

    Args:
        A: (m, n); numpy.ndarray, torch.Tensor or nested lists of real or complex numbers; no tensor that
            requires a gradient.
        b: (m,) or (m, k).
        precision: ``auto`` or a name of :data:`PRECISIONS`; refinement is always classical.
        watch: called as ``watch(precision, iteration, size)`` with the number of corrections before and the
            size of each new one relative to x.

    Returns:
        x, (n,) or (n, k), an array or tensor like b, with its evidence; each history holds the relative sizes
        of the corrections. A solution outside the range of double precision gives a RuntimeWarning, and
        ``converged`` is false.

    Raises:
        ArgumentError: shapes that do not fit, no such precision, or a tensor that requires a gradient.
        DataError: NaN or infinity in the input.

    >>> import numpy as np
    >>> lstsq(np.array([[1.0, 0.0], [1.0, 1.0], [1.0, 2.0]]), np.array([1.0, 3.0, 5.0])).x.round(12)
    array([1., 2.])
    """
    for given, name in ((A, "A"), (b, "b")):
        if isinstance(given, torch.Tensor) and given.requires_grad and torch.is_grad_enabled():
            raise ArgumentError(
                f"{name} requires a gradient, which lstsq does not compute; pass {name}.detach()"
            )
    a: torch.Tensor = tensor(A, "A")
    if a.ndim != 2:
        raise ArgumentError(f"A has the shape {tuple(a.shape)}; expected (m, n)")
    planned = precisions(precision, a.shape[1], a.device)  # refused also where it is not tried
    check_finite(a, "A")
    columns = checked_columns(b, a)
    dtype = torch.promote_types(a.dtype, columns.dtype)
    a, columns = a.to(dtype), columns.to(dtype)
    if 0 in (*a.shape, columns.shape[1]):
        return _nothing(as_given(columns.new_zeros(a.shape[1], columns.shape[1]), b), columns)
    tried = planned if len(a) >= a.shape[1] else ()
    if precision == "auto" and not pays(a.shape[1], columns.shape[1]):
        tried = tried[-1:]
    a, top = _moderate(a, a.abs().amax())
    columns, tops = _moderate(columns, columns.abs().amax(0))
    stages: list[Stage] = []
    for step in tried:
        x, stage, condition = _attempt(a, columns, step, precision == "auto", watch)
        stages.append(stage)
        if x is not None:
            return _solution(a, x, columns, b, stages, condition, tops - top)
    x, stage = _shortest(a, columns)
    return _solution(a, x, columns, b, [*stages, stage], math.nan, tops - top)


def _nothing(x: Array, columns: torch.Tensor) -> Solution[Array]:
    """Return x of zeros, the solution where A or b has no numbers: all of b, (m, k), is left."""
    residuals = [float(bool(b.any())) for b in columns.mT]

    def exact(x: Array, residual: float, parts: tuple[Solution[Array], ...]) -> Solution[Array]:
        return Solution(x, True, residual, backward_error=0.0, optimality=0.0, columns=parts)

    parts = tuple(exact(x[:, i], r, ()) for i, r in enumerate(residuals)) if x.ndim == 2 else ()
    return exact(x, max(residuals, default=0.0), parts)


def _moderate(v: torch.Tensor, size: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return v 2^-e with a largest magnitude that may be squared, and e, int64 in the shape of ``size``."""
    exponents = exponents_of(size)
    exponents = torch.where((exponents.abs() < _FAR) | (size == 0), 0, exponents)
    return (times_power(v, -exponents) if bool(exponents.any()) else v), exponents


def _solution(
    a: torch.Tensor,
    x: torch.Tensor,
    columns: torch.Tensor,
    b: Array,
    stages: list[Stage],
    condition: float,
    exponents: torch.Tensor,
) -> Solution[Array]:
    """Return x 2^exponents, (n, k), as a Solution in the shape of b; the evidence is that of x."""
    r = residuals(a, x, columns)[0]  # in float64 it may be less than what rounds off
    norm = torch.linalg.vector_norm(a)
    length, right = torch.linalg.vector_norm(r, dim=0), torch.linalg.vector_norm(columns, dim=0)
    slope = torch.linalg.vector_norm(a.mH @ r, dim=0)
    across = torch.where(slope > 0, slope / (norm * length), 0.0)
    along = length / (norm * torch.linalg.vector_norm(x, dim=0) + right)
    some = length > 0
    found = times_power(x, exponents) if bool(exponents.any()) else x
    lost = _lost(x, found)
    change = x - (found if found is x else times_power(found, -exponents.expand(x.shape)))
    if bool((change != 0).any()):  # entries underflowed
        lost = lost | (torch.linalg.vector_norm(a @ change, dim=0) > length + 8 * EPS * right)
    numbers = [torch.where(some, v, 0.0) for v in (length / right, torch.minimum(across, along), across)]
    numbers = [torch.where(lost, math.nan, v) for v in numbers]

    def with_evidence(x: Array, of: slice, parts: tuple[Solution[Array], ...]) -> Solution[Array]:
        residual, backward, optimality = (float(v[of].max()) for v in numbers)
        return Solution(
            x,
            not bool(lost[of].any()),
            residual,
            stages[-1].code,
            tuple(stages),
            stages[-1].history,
            backward_error=backward,
            condition=condition,
            optimality=optimality,
            columns=parts,
        )

    given = as_given(found, b)
    if bool(lost.any()):
        warnings.warn(_OUTSIDE, RuntimeWarning, stacklevel=3)
    k = x.shape[1] if given.ndim == 2 else 0
    return with_evidence(
        given, slice(None), tuple(with_evidence(given[:, i], slice(i, i + 1), ()) for i in range(k))
    )


def _lost(x: torch.Tensor, found: torch.Tensor) -> torch.Tensor:
    """Return, (k,), whether a column of x, scaled to be ``found``, left the range of double precision."""
    sizes = found.abs().amax(0)
    return ~torch.isfinite(sizes) | (sizes < torch.finfo(torch.float64).tiny) & (x.abs().amax(0) > 0)


def _shortest(a: torch.Tensor, b: torch.Tensor) -> tuple[torch.Tensor, Stage]:
    """Return the solution of least norm, by SVD; the rank counts singular values above eps max(m, n)."""
    began = time.perf_counter()
    share = 2 * EPS * max(a.shape)
    if a.device.type == "cpu":
        found, _, rank, _ = linalg.lstsq(a.numpy(), b.numpy(), cond=share, lapack_driver="gelsd")
        x = torch.from_numpy(np.ascontiguousarray(found))
    else:
        u, sizes, v = torch.linalg.svd(a, full_matrices=False)
        counts = sizes > share * sizes.amax()
        rank = int(counts.sum())
        x = v.mH @ (torch.where(counts, 1 / sizes, 0.0)[:, None] * (u.mH @ b))
    spent = time.perf_counter() - began
    method = f"SVD, rank {rank} of {min(a.shape)}"
    return x, Stage("fp64", method, 0, 0, spent, 0.0, "", ())


def _attempt(
    a: torch.Tensor, b: torch.Tensor, tried: Precision, doubting: bool, watch: Watch | None
) -> tuple[torch.Tensor | None, Stage, float]:
    """Return the solution, or None where it did not converge, with the stage and the condition of R."""
    began = time.perf_counter()
    history: list[float] = []

    def note(size: float) -> None:
        history.append(size)
        if watch is not None:
            watch(tried.name, len(history) - 1, size)

    def stage(code: int, reason: str = "") -> Stage:
        return Stage(
            tried.name,
            "QR",
            code,
            0,
            factored,
            time.perf_counter() - began - factored,
            reason,
            tuple(history),
        )

    double = tried.factor == "fp64"
    scales = qr.column_scales(a)
    scaled = a * scales
    low = scaled if double else scaled.to(_NARROW[a.dtype])
    judged = doubting and not double
    doubt = (
        condition_probe.doubt(qr.leading_pivots(low), a.shape[1], roundoff(tried.factor)) if judged else ""
    )
    factors = None if doubt else qr.factorize(low, tried.factor, scales)
    factored = time.perf_counter() - began
    if factors is None:
        return None, stage(-1, doubt), math.nan
    pivots = factors.pivots.abs().double()
    if not bool(torch.isfinite(pivots).all()):
        return None, stage(-2, REASONS[-2]), math.nan
    largest, least = float(pivots.max()), float(pivots.min())
    if least <= max(a.shape) * roundoff("fp64" if double else "fp32") * largest:
        return (
            None,
            stage(-3, f"a pivot of R is {least / largest if largest else 0:.0e} of the largest"),
            math.nan,
        )
    norm, inverse = factors.norms()
    if norm * inverse * 2 * EPS * max(a.shape) >= 1:
        return None, stage(-3, "R is singular to working precision"), math.nan
    condition, ratio = max(norm * inverse, largest / least), largest / least
    r, z = factors.solve(b, torch.zeros_like(b[: a.shape[1]]))
    if double:
        return scales[:, None] * z, stage(0), condition
    z, code, reason = _refined(scaled, b, r, z, factors, ratio, note)
    return (scales[:, None] * z if code >= 0 else None), stage(code, reason), condition


_NARROW = {torch.float64: torch.float32, torch.complex128: torch.complex64}


def _refined(
    a: torch.Tensor,
    b: torch.Tensor,
    r: torch.Tensor,
    z: torch.Tensor,
    factors: qr.Orthogonal,
    condition: float,
    note: Callable[[float], None],
) -> tuple[torch.Tensor, int, str]:
    """Return the solution with the code and the reason of a Stage."""
    size = float(factors.pivots.abs().max())
    before = math.inf
    for step in range(1, MOST_STEPS + 1):
        more_r, more_z = factors.solve(b - r - a @ z, -(a.mH @ r))
        r, z = r + more_r, z + more_z
        length, change, left = (torch.linalg.vector_norm(v, dim=0) for v in (z, more_z, r))
        allowed = math.sqrt(len(a)) * EPS * condition * (length + left / size)
        now = float(torch.where(change > 0, change / length, 0.0).max())
        note(now)
        if not math.isfinite(now):
            return z, -5, REASONS[-5]
        if bool((change <= allowed).all()):
            return z, step, ""
        if now > before / 2:
            return z, -50, f"a step of refinement left {now / before:.2g} of the correction"
        before = now
    return z, -50, f"{MOST_STEPS} steps left corrections of {before:.1e}"
