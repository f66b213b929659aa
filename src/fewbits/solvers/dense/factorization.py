"""Dense systems: factorize narrow, refine to double accuracy, fall back where that does not converge."""

from __future__ import annotations

import math
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import Any

import torch

from fewbits.errors import ArgumentError, DataError
from fewbits.records import Stage
from fewbits.solvers.dense import (
    arrays,
    attempt,
    batches,
    cholesky,
    condition,
    condition_probe,
    gradients,
    system,
)
from fewbits.solvers.dense import plan as choice
from fewbits.solvers.dense import refinement as refine
from fewbits.solvers.dense.arrays import as_given, columns_of, finite, with_gradient
from fewbits.solvers.dense.attempt import Kept
from fewbits.solvers.dense.factors import Factors
from fewbits.solvers.dense.system import State, System
from fewbits.solvers.precision import ASSUMPTIONS, Precision, roundoff
from fewbits.solvers.precision import precision as read
from fewbits.solvers.solution import Result

Watch = Callable[[str, int, float], None]
# What the componentwise error of a first solution in double precision may be: that of a matrix which was
# scaled is brought down to what rounding x alone leaves, since LAPACK, with other pivots, may have less.
_ENOUGH_SCALED = 2 * refine.EPS
_EQUILIBRATE = {"LU": system.general, "QR": system.general, "Cholesky": system.definite}
_STABLE = 16  # times sqrt(n) 2^-53: the normwise error above which a solution solves another system


@dataclass(frozen=True)
class _Attempt:
    """One precision on one right-hand side; no ``y`` or ``factors`` where there was no solution."""

    stage: Stage
    factors: Factors | None = None
    key: tuple[str, str] = ("", "")
    state: State | None = None  # None where the solution was not judged
    y: torch.Tensor | None = None  # of the equilibrated system


@dataclass(frozen=True)
class Solution:
    """Columns that solve a system, and how they were found; ``system`` and ``b`` are the last stage's."""

    x: torch.Tensor
    attempts: list[_Attempt]
    system: System
    b: torch.Tensor
    warning: str


class Factorization:
    """A square matrix, factorized for as many right-hand sides as one likes.

    Args:
        a: (n, n) numpy.ndarray, torch.Tensor or nested list of real or complex numbers. It is kept and, in
            double precision, not copied: leave it as it is.
        precision: as in :func:`solve`. What ``auto`` takes is chosen for each right-hand side.
        assume: ``general``, or ``positive definite``: Hermitian, and factorized by Cholesky in half the time;
            by LU after all where a pivot is not positive.

    Raises:
        ArgumentError: not a square matrix, or no such precision or assumption.
        DataError: NaN or infinity in it, or it is not Hermitian where that is assumed.
    """

    def __init__(self, a: Any, precision: str | Precision = "auto", *, assume: str = "general") -> None:
        self.given = with_gradient(a, "A")
        self.a = self.given.detach()
        _check(self.a, assume)
        self.plan = _plan(precision, assume, len(self.a))
        # The copy is made while the magnitudes are read, and factorized where nothing has to be scaled.
        self._extents = system.extents(self.a, single=self.plan[0] == ("LU", read("fp32")))
        if not bool(torch.isfinite(self._extents.sums).all()):
            finite(self.a, "A")  # or only the sums overflow
        self.assume = assume
        if assume != "general":
            cholesky.check_hermitian(self.a)
        self._auto = precision == "auto"
        self._kept: dict[tuple[str, str], Kept] = {}
        self._systems: dict[tuple[str, bool], System] = {}
        self._answers: dict[tuple[str, str], torch.Tensor] = {}
        self._inverses: dict[tuple[str, str], condition.Inverse] = {}

    def system(self, method: str, *, adjoint: bool = False) -> System:
        """Return the equilibrated system that ``method`` factorizes, or that of A^H."""
        if (method, adjoint) not in self._systems:
            equilibrate = _EQUILIBRATE[method]
            found = self.system(method).adjoint() if adjoint else equilibrate(self.a, self._extents)
            self._systems[method, adjoint] = found
        return self._systems[method, adjoint]

    @cached_property
    def sampled_pivots(self) -> torch.Tensor:
        """Some pivots, which tell whether narrow factors are worth trying."""
        return condition_probe.sampled_pivots(self.a)

    def solve(self, b: Any, *, watch: Watch | None = None) -> Result:
        """Solve A x = b.

        Args:
            b: (n,) or (n, k).
            watch: called with a precision, the number of residuals before, and each new componentwise
                backward error.

        Raises:
            ArgumentError: a shape that does not fit.
            DataError: NaN or infinity in b, or A is singular.
        """
        x, found = self._differentiable(b, watch or _unwatched)
        if found is None:
            return Result(x, 0.0, 0.0, 0.0, 0, math.nan, ())
        last = found.attempts[-1]
        state, factors = last.state, last.factors
        assert state is not None
        assert factors is not None
        inverse = self._inverse(last)
        stretch = inverse.norm / inverse.seen if inverse.seen else 1.0
        judged = last.stage.code >= 0
        return Result(
            x,
            found.system.normwise(state, found.b),
            state.error,
            stretch * condition.forward_error(found.system, factors, state) if judged else math.inf,
            max(last.stage.code, 0),
            _believed(found.system, inverse),
            tuple(one.stage for one in found.attempts),
        )

    def solution(self, b: Any) -> Any:
        """Return x alone: what :meth:`solve` finds out only to report is left out."""
        return self._differentiable(b, None)[0]

    def _differentiable(self, b: Any, watch: Watch | None) -> tuple[Any, Solution | None]:
        """Return x of b's family, with its gradient, and how it was found; None where b is empty."""
        run = _Run(lambda _: self, watch)
        return _solved(self.given, b, run), run.first

    def columns(self, b: torch.Tensor, watch: Watch | None = None, *, adjoint: bool = False) -> Solution:
        """Solve A x = b, or A^H x = b, for the columns of b, (n, k) float64 or complex128.

        Raises:
            DataError: A is singular.
        """
        finite(b, "b")
        if b.is_complex() and not self.a.is_complex():
            parts = self.columns(torch.cat([b.real, b.imag], 1), watch, adjoint=adjoint)
            real, imaginary = parts.x.chunk(2, 1)
            return replace(parts, x=torch.complex(real.contiguous(), imaginary.contiguous()))
        b = b.to(self.a.dtype)
        few = choice.is_worth_it(*b.shape)
        plan = [(m, one) for m, one in self.plan if few or not self._auto or one.factor == "fp64"]
        attempts: list[_Attempt] = []
        entered: list[tuple[System, torch.Tensor, torch.Tensor]] = []
        for method, one in plan:
            here = self.system(method, adjoint=adjoint)
            inner, top = here.entering(b)
            judge = few or watch is not None or here.rows is not None
            entered.append((here, inner, top))
            attempts.append(self._attempt(here, inner, method, one, adjoint, judge, watch))
            code = attempts[-1].stage.code
            if code >= 0 or (one.factor == "fp64" and method == "LU" and code != -50):
                break
        last, (here, inner, top) = attempts[-1], entered[-1]
        if last.factors is None or last.y is None:
            raise DataError(f"A is singular: {last.stage.reason}; there is no unique solution")
        x = here.leaving(last.y, top)
        if last.stage.code >= 0 and not bool(torch.isfinite(x.abs()).all()):
            last = attempts[-1] = _overflowed(last, x)
        return Solution(x, attempts, here, inner, self._warning(last, x))

    def _attempt(
        self,
        here: System,
        b: torch.Tensor,
        method: str,
        one: Precision,
        adjoint: bool,
        judge: bool,
        watch: Watch | None,
    ) -> _Attempt:
        began = time.perf_counter()
        narrow = one.factor != "fp64"
        key = (method, one.factor)
        taken = 0.0
        if key not in self._kept:
            self._kept[key] = self._factorized(method, one.factor)
            taken = time.perf_counter() - began
        kept = self._kept[key]
        if kept.factors is None:
            return _Attempt(Stage(one.name, method, kept.code, 0, taken, 0.0, kept.reason, ()))
        factors = kept.factors.adjoint() if adjoint else kept.factors
        factors = factors if one.working == "fp32" else factors.wide()
        began = time.perf_counter()
        y = self._first(here, key, factors, b, adjoint)
        if not narrow and not judge:
            code, reason = (0, "") if bool(torch.isfinite(y.abs()).all()) else (-5, _OVERFLOW)
            spent = time.perf_counter() - began
            return _Attempt(Stage(one.name, method, code, 0, taken, spent, reason, ()), factors, key, None, y)
        done = refine.refine(
            here,
            b,
            y,
            factors,
            one.refinement if narrow else "classical",
            enough=self._enough(here, narrow),
            strictly=narrow,
            most_inner=choice.most_inner(len(self.a)) if self._auto and narrow else None,
            watch=None if watch is None else lambda step, size: watch(one.name, step, size),
        )
        code, reason = done.code, done.reason
        if not narrow and code < 0:
            code, reason = self._judged(here, done, b)
        spent = time.perf_counter() - began
        stage = Stage(one.name, method, code, done.inner, taken, spent, reason, tuple(done.history))
        return _Attempt(stage, factors, key, done.state, done.state.x)

    def _first(
        self, here: System, key: tuple[str, str], factors: Factors, b: torch.Tensor, adjoint: bool
    ) -> torch.Tensor:
        """Return what the factors give for b; the first time the answers to the probes come along."""
        if adjoint or key in self._answers:
            return factors.solve(b)
        both = factors.solve(torch.cat([b, condition.probes(here.a)], 1))
        self._answers[key] = both[:, b.shape[1] :]
        return both[:, : b.shape[1]]

    def _factorized(self, method: str, factor: str) -> Kept:
        if self._auto and factor != "fp64":
            doubt = condition_probe.doubt(self.sampled_pivots, len(self.a), roundoff(factor))
            if doubt:
                return Kept(None, -1, doubt)
        here, single = self.system(method), self._extents.single
        self._extents = replace(self._extents, single=None)  # it is used once
        return attempt.factorize(here.a, method, factor, single if here.rows is None else None)

    def _enough(self, here: System, narrow: bool) -> float:
        """Return the error of a first solution that needs no refinement."""
        if narrow:
            return refine.EPS
        return _ENOUGH_SCALED if here.rows is not None else math.sqrt(len(self.a)) * refine.EPS

    def _judged(self, here: System, done: refine.Refined, b: torch.Tensor) -> tuple[int, str]:
        """Return the code of a solution in double precision that refinement could not make perfect."""
        if not math.isfinite(done.state.error):
            return -5, _OVERFLOW
        error, allowed = here.normwise(done.state, b), _STABLE * math.sqrt(len(b)) * refine.EPS
        if error <= allowed:
            return len(done.history) - 1, ""
        return -50, f"the backward error stayed at {error:.1e}, {allowed:.1e} is what double precision allows"

    def _inverse(self, last: _Attempt) -> condition.Inverse:
        key = last.key
        if key not in self._inverses:
            here, kept = self.system(key[0]), self._kept[key].factors
            assert kept is not None
            factors = kept.wide()
            if key not in self._answers:
                self._answers[key] = factors.solve(condition.probes(here.a))
            self._inverses[key] = condition.inverse_norm(
                here, factors, roundoff(key[1]), self._answers[key], doubtful=last.stage.inner > 0
            )
        return self._inverses[key]

    def _regular(self, last: _Attempt) -> bool:
        """Whether A is regular beyond doubt, as far as little work tells."""
        (method, factor), answers = last.key, self._answers.get(last.key)
        factors = self._kept[last.key].factors
        if last.stage.inner or answers is None or factors is None:
            return False
        return condition.harmless(self.system(method), factors.wide(), roundoff(factor), answers)

    def _warning(self, last: _Attempt, x: torch.Tensor) -> str:
        """Return what is wrong with the solution; "" where nothing is."""
        finite_x = bool(torch.isfinite(x.abs()).all())
        if not finite_x:
            return f"A is singular to working precision: {_OVERFLOW}"
        if not self._regular(last) and not math.isfinite(
            _believed(self.system(last.key[0]), self._inverse(last))
        ):
            return (
                "A is singular to working precision: its condition, rows and columns equilibrated, is"
                f" {condition.certain(len(x)):.0e} or more, and no digit of x is certain"
            )
        return "" if last.stage.code >= 0 else f"x is not a solution: {last.stage.reason}"


def _overflowed(last: _Attempt, x: torch.Tensor) -> _Attempt:
    """Return an attempt whose solution, x, is beyond what double precision holds."""
    nothing = torch.full(x.shape[1:], math.nan, dtype=torch.float64)
    stage = replace(last.stage, code=-5, reason=_OVERFLOW)
    return replace(last, stage=stage, state=State(x, torch.full_like(x, math.nan), nothing, nothing))


def _check(a: torch.Tensor, assume: str) -> None:
    """Refuse what is no square matrix, and an assumption that there is not."""
    if a.ndim != 2 or a.shape[0] != a.shape[1]:
        raise ArgumentError(f"A has the shape {tuple(a.shape)}; expected a square matrix")
    if assume not in ASSUMPTIONS:
        raise ArgumentError(f"assume={assume!r}; expected one of {', '.join(ASSUMPTIONS)}")


class _Run:
    """Solves with one matrix, which is factorized when that is first asked for."""

    def __init__(self, make: Callable[[torch.Tensor], Factorization], watch: Watch | None = None) -> None:
        self.first: Solution | None = None
        self.warnings: dict[str, None] = {}  # in order, each once
        self._make, self._watch = make, watch
        self._factors: Factorization | None = None

    def __call__(self, a: torch.Tensor, b: torch.Tensor, adjoint: bool) -> torch.Tensor:
        self._factors = self._factors or self._make(a.detach())
        found = self._factors.columns(b.detach(), self._watch, adjoint=adjoint)
        self.first = self.first or found
        if found.warning:
            self.warnings[found.warning] = None
        return found.x.clone()  # what is returned gets a gradient, and is not to be judged by

    def fresh(self) -> _Run:
        other = _Run(self._make, self._watch)
        other.warnings = self.warnings
        return other


def _solved(a: torch.Tensor, b: Any, run: _Run) -> Any:
    """Return the solution of b's family and shape, with its gradient; warn of what is wrong with it."""
    columns = columns_of(b, len(a))
    if columns.numel() == 0:
        return as_given(columns.clone(), b)
    if a.is_complex():
        columns = columns.to(a.dtype)
    x = gradients.solve(a, columns, run)
    for text in run.warnings:
        warnings.warn(text, RuntimeWarning, stacklevel=4)
    return as_given(x, b)


_OVERFLOW = "x holds NaN or infinity: the solution exceeds what double precision holds"


def _believed(here: System, inverse: condition.Inverse) -> float:
    """Return the condition of the equilibrated matrix; infinity where it is beyond what can be known."""
    found = here.norm * inverse.norm
    return found if found <= condition.certain(len(here.a)) else math.inf


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
    """Solve A x = b with the backward error of LAPACK's double precision, or a smaller one.

    The matrix is equilibrated by powers of two and factorized in a narrow format, and the solution refined
    with residuals in twice the precision until each entry is |b - A x| <= 2^-53 (|A| |x| + |b|), or twice
    that where it falls no further; where that is not reached the next wider format is taken, and double
    precision in the end. A matrix that is singular to working precision gives a RuntimeWarning with the
    solution, as in SciPy. Gradients with respect to A and b come from the same factors.

    Args:
        a: (n, n), or (..., n, n) for many systems; numpy.ndarray, torch.Tensor or nested lists of real or
            complex numbers.
        b: (n,) or (n, k); for many systems (..., n) where those axes are A's own, else (..., n, k), whose
            front axes broadcast with A's.
        precision: ``auto``, a name of :data:`PRECISIONS`, a format, or either with other roles:
            ``bf16x2:refinement=gmres``.
        assume: ``general`` or ``positive definite``, for Cholesky.
        full: return a :class:`Result` instead of the solution; for one system.
        watch: called with a precision, the number of residuals before, and each new componentwise backward
            error; for ``full``.

    Returns:
        x of b's shape and family.

    Raises:
        ArgumentError: shapes that do not fit, or no such precision.
        DataError: NaN or infinity in the input, or a singular matrix.

    >>> import numpy as np
    >>> solve(np.array([[2.0, 1.0], [1.0, 3.0]]), np.array([3.0, 5.0]))
    array([0.8, 1.4])
    """
    if max(len(arrays.shape(a)), len(arrays.shape(b))) > 2:
        if full:
            raise ArgumentError("full=True describes one system; solve many one by one for that")
        lapack = assume == "general" and len(choice.chain(precision, arrays.shape(a)[-1])) == 1
        one = partial(solve, precision=precision, assume=assume)
        return batches.solve(a, b, one, lapack)
    if full:
        return Factorization(a, precision, assume=assume).solve(b, watch=watch)
    wide = with_gradient(a, "A")
    _check(wide, assume)
    return _solved(wide, b, _Run(lambda a: Factorization(a, precision, assume=assume)))


def _plan(precision: str | Precision, assume: str, n: int) -> list[tuple[str, Precision]]:
    """Return what to try, in order: LU in double precision last, and QR where its pivots grew."""
    tried = choice.chain(precision, n)
    stable = [("LU", tried[-1]), ("QR", tried[-1])]
    if assume == "general":
        return [*(("LU", one) for one in tried[:-1]), *stable]
    return [*(("Cholesky", one) for one in tried), *stable]


def _unwatched(precision: str, step: int, size: float) -> None:
    """Watch nothing, but have everything found out."""
