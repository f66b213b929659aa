"""Dense systems: factorize narrow, refine to double accuracy, fall back where that does not converge."""

from __future__ import annotations

import math
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import torch

from fewbits.errors import ArgumentError, DataError
from fewbits.records import Stage
from fewbits.solvers import attempt, choice, cholesky, evidence, refine
from fewbits.solvers.arrays import as_given, checked_columns, finite, tensor
from fewbits.solvers.attempt import Kept
from fewbits.solvers.factors import Factors
from fewbits.solvers.precision import ASSUMPTIONS, Precision, roundoff
from fewbits.solvers.result import Result

Watch = Callable[[str, int, float], None]
_SUSPICIOUS = 1e-13  # between the smallest and the largest pivot: below it the condition is estimated


@dataclass(frozen=True)
class _Attempt:
    """One precision on one right-hand side; no ``x`` or ``factors`` where there was no solution."""

    stage: Stage
    x: torch.Tensor | None
    factors: Factors | None


class Factorization:
    """A square matrix, factorized for as many right-hand sides as one likes.

    Args:
        a: (n, n) numpy.ndarray or torch.Tensor; float64, float32, complex128 or complex64. It is kept and, in
            double precision, not copied: leave it as it is.
        precision: as in :func:`solve`. What ``auto`` takes is chosen for each right-hand side.
        assume: ``general``, or ``positive definite``: Hermitian, and factorized by Cholesky in half the time;
            by LU after all where a pivot is not positive.

    Raises:
        ArgumentError: not a square matrix, or no such precision or assumption.
        DataError: NaN or infinity in it, or it is not Hermitian where that is assumed.
    """

    def __init__(self, a: Any, precision: str | Precision = "auto", *, assume: str = "general") -> None:
        self.a = tensor(a, "A")
        if self.a.ndim != 2 or self.a.shape[0] != self.a.shape[1]:
            raise ArgumentError(f"A has the shape {tuple(self.a.shape)}; expected a square matrix")
        if assume not in ASSUMPTIONS:
            raise ArgumentError(f"assume={assume!r}; expected one of {', '.join(ASSUMPTIONS)}")
        finite(self.a, "A")
        self.assume = assume
        if assume != "general":
            cholesky.check_hermitian(self.a)
        self.plan = _plan(precision, assume, len(self.a))
        self._auto = precision == "auto"
        self._kept: dict[tuple[str, str, torch.dtype], Kept] = {}

    @cached_property
    def sizes(self) -> evidence.Sizes:
        """The sizes of the rows of A."""
        return evidence.sizes(self.a)

    @cached_property
    def sampled_pivots(self) -> torch.Tensor:
        """Some pivots, which tell whether narrow factors are worth trying."""
        return evidence.sampled_pivots(self.a)

    def solve(self, b: Any, *, watch: Watch | None = None) -> Result:
        """Solve A x = b.

        Args:
            b: (n,) or (n, k), of A's family.
            watch: called with a precision, the number of residuals before, and each new relative residual.

        Raises:
            ArgumentError: a shape that does not fit.
            DataError: NaN or infinity in b, or A is singular.
        """
        columns = checked_columns(b, len(self.a))
        if columns.numel() == 0:
            return Result(b, 0.0, 0, math.nan, ())
        a, columns = self._alike(columns)
        attempts = self._attempts(a, columns, watch or _unwatched)
        x, factors = attempts[-1].x, attempts[-1].factors
        assert x is not None
        assert factors is not None
        stages = tuple(one.stage for one in attempts)
        condition = evidence.condition(self.sizes.norm, factors, a)
        return Result(
            as_given(x, b),
            _backward_error(a, x, columns),
            max(stages[-1].code, 0),
            condition,
            stages,
        )

    def solution(self, b: Any) -> Any:
        """Return x alone: what :meth:`solve` finds out only to report is left out."""
        columns = checked_columns(b, len(self.a))
        if columns.numel() == 0:
            return b
        a, columns = self._alike(columns)
        x = self._attempts(a, columns, None)[-1].x
        assert x is not None
        return as_given(x, b)

    def _alike(self, columns: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        dtype = torch.promote_types(self.a.dtype, columns.dtype)
        return self.a.to(dtype), columns.to(dtype)

    def _attempts(self, a: torch.Tensor, b: torch.Tensor, watch: Watch | None) -> list[_Attempt]:
        found: list[_Attempt] = []
        plan = self.plan
        many = self._auto and not choice.is_worth_it(*b.shape)
        # Where sums of rows overflow, so does the test of convergence.
        if many or (len(plan) > 1 and not math.isfinite(self.sizes.norm)):
            plan = [(method, one) for method, one in plan if one.factor == "fp64"]
        for method, one in plan:
            found.append(self._attempt(a, b, method, one, watch))
            if found[-1].stage.code >= 0:
                break
        last = found[-1]
        if last.factors is None or last.stage.code < 0:
            raise DataError(f"A is singular: {last.stage.reason}; there is no unique solution")
        self._warn(a, last.factors)
        return found

    def _attempt(
        self, a: torch.Tensor, b: torch.Tensor, method: str, one: Precision, watch: Watch | None
    ) -> _Attempt:
        began = time.perf_counter()
        if self._auto and one.factor != "fp64":
            doubt = evidence.doubt(self.sampled_pivots, len(a), roundoff(one.factor))
            if doubt:
                spent = time.perf_counter() - began
                return _Attempt(Stage(one.name, method, -1, 0, spent, 0.0, doubt, ()), None, None)
        # A complex right-hand side takes complex factors of a real matrix.
        key = (method, one.factor, a.dtype)
        if key not in self._kept:
            self._kept[key] = attempt.factorize(a, method, one.factor, is_mild=lambda: self.sizes.mild)
            taken = time.perf_counter() - began
        else:
            taken = 0.0
        kept = self._kept[key]
        factors = kept.factors if kept.factors is None or one.working == "fp32" else kept.factors.wide()
        began = time.perf_counter()
        if factors is None:
            return _Attempt(Stage(one.name, method, kept.code, 0, taken, 0.0, kept.reason, ()), None, None)
        if one.refinement == "none":
            x = factors.solve(b)
            history: tuple[float, ...] = ()
            if watch is not None:
                history = (refine.state_of(a, self.sizes.norm, x, b).size,)
                watch(one.name, 0, history[0])
            spent = time.perf_counter() - began
            return _Attempt(Stage(one.name, method, 0, 0, taken, spent, "", history), x, factors)
        done = refine.refine(
            a,
            self.sizes.norm,
            b,
            factors,
            one.refinement,
            most_inner=choice.most_inner(len(a)) if self._auto else None,
            watch=None if watch is None else lambda step, size: watch(one.name, step, size),
        )
        spent = time.perf_counter() - began
        stage = Stage(one.name, method, done.code, done.inner, taken, spent, done.reason, tuple(done.history))
        return _Attempt(stage, done.state.x, factors)

    def _warn(self, a: torch.Tensor, factors: Factors) -> None:
        pivots = factors.pivots.abs()
        if float(pivots.min()) > _SUSPICIOUS * float(pivots.max()):
            return
        condition = evidence.condition(self.sizes.norm, factors, a)
        if condition * refine.EPS > 1:
            warnings.warn(
                f"A is singular to working precision: its condition is about {condition:.0e}, and no digit"
                " of x is certain",
                RuntimeWarning,
                stacklevel=4,
            )


def factorize(a: Any, precision: str | Precision = "auto", *, assume: str = "general") -> Factorization:
    """Return the matrix ready for right-hand sides; arguments and errors: :class:`Factorization`."""
    return Factorization(a, precision, assume=assume)


def solve(
    a: Any,
    b: Any,
    *,
    precision: str | Precision = "auto",
    assume: str = "general",
    full: bool = False,
    watch: Watch | None = None,
) -> Any:
    """Solve A x = b with the backward error of LAPACK's double precision.

    The matrix is factorized in a narrow format and the solution refined with residuals in float64, until
    max |b - A x| <= sqrt(n) max |x| |A| 2^-53 in infinity norms; where that is not reached the next wider
    format is taken, and double precision in the end. A matrix that is singular to working precision gives a
    RuntimeWarning with the solution, as in SciPy.

    Args:
        a: (n, n), or (..., n, n) for many systems.
        b: (n,) or (n, k); for many systems (..., n, k).
        precision: ``auto``, a name of :data:`PRECISIONS`, a format, or either with other roles:
            ``bf16x2:refinement=gmres``.
        assume: ``general`` or ``positive definite``, for Cholesky.
        full: return a :class:`Result` instead of the solution; for one system.
        watch: called with a precision, the number of residuals before, and each new relative residual; for
            ``full``.

    Returns:
        x of b's shape and family.

    Raises:
        ArgumentError: shapes that do not fit, or no such precision.
        DataError: NaN or infinity in the input, or a singular matrix.

    >>> import numpy as np
    >>> solve(np.array([[2.0, 1.0], [1.0, 3.0]]), np.array([3.0, 5.0]))
    array([0.8, 1.4])
    """
    if getattr(a, "ndim", 2) > 2:
        if full:
            raise ArgumentError("full=True describes one system; solve many one by one for that")
        return _many(a, b, precision, assume)
    factors = Factorization(a, precision, assume=assume)
    return factors.solve(b, watch=watch) if full else factors.solution(b)


def _many(a: Any, b: Any, precision: str | Precision, assume: str) -> Any:
    front = tuple(a.shape[:-2])
    if tuple(b.shape[:-1]) != (*front, a.shape[-1]):
        raise ArgumentError(
            f"b has the shape {tuple(b.shape)}; expected {(*front, a.shape[-1], 'k')} for an A of"
            f" {tuple(a.shape)}"
        )
    n = a.shape[-1]
    if a.shape[-2] != n:
        raise ArgumentError(f"A has the shape {tuple(a.shape)}; expected square matrices")
    if 0 in b.shape:
        return b
    systems, sides = a.reshape(-1, n, n), b.reshape(-1, n, b.shape[-1])
    if assume == "general" and len(choice.chain(precision, n)) == 1:
        x = _together(tensor(systems, "A"), tensor(sides, "b"))
        return as_given(x, sides).reshape(b.shape)
    found = [
        solve(one, side, precision=precision, assume=assume) for one, side in zip(systems, sides, strict=True)
    ]
    stacked = np.stack(found) if isinstance(b, np.ndarray) else torch.stack(found)
    return stacked.reshape(b.shape)


def _together(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """Solve (m, n, n) systems in double precision at once; those that look singular again, one by one."""
    finite(a, "A")
    finite(b, "b")
    dtype = torch.promote_types(a.dtype, b.dtype)
    lu, pivots, _ = torch.linalg.lu_factor_ex(a.to(dtype))
    x: torch.Tensor = torch.linalg.lu_solve(lu, pivots, b.to(dtype))
    sizes = lu.diagonal(dim1=-2, dim2=-1).abs()
    for i in (~(sizes.amin(-1) > _SUSPICIOUS * sizes.amax(-1))).nonzero()[:, 0].tolist():
        try:
            x[i] = solve(a[i], b[i], precision="fp64")
        except DataError as error:
            raise DataError(f"system {i}: {error}") from None
    return x


def _plan(precision: str | Precision, assume: str, n: int) -> list[tuple[str, Precision]]:
    """Return what to try, in order: LU in double precision last."""
    tried = choice.chain(precision, n)
    if assume == "general":
        return [("LU", one) for one in tried]
    return [*(("Cholesky", one) for one in tried), ("LU", tried[-1])]


def _unwatched(precision: str, step: int, size: float) -> None:
    """Watch nothing, but have everything found out."""


def _backward_error(a: torch.Tensor, x: torch.Tensor, b: torch.Tensor) -> float:
    """Return the normwise backward error (Rigal and Gaches, 1967)."""
    down = 2.0**-40 if float(a.abs().max()) > 2.0**900 else 1.0  # sums of rows would overflow
    a, b = a * down, b * down
    scale = evidence.sizes(a).norm * x.abs().amax(0) + b.abs().amax(0)
    size = (b - a @ x).abs().amax(0)
    return float(torch.where(size > 0, size / scale, 0.0).max())
