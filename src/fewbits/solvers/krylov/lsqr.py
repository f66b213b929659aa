"""LSQR with vectors stored in narrow formats, for systems of any shape and least squares.

Paige and Saunders, LSQR: An algorithm for sparse linear equations and sparse least squares, 1982, with their
second bidiagonalization, which starts from A^H r. Each cycle computes that in double precision, so that
narrow vectors do not limit the accuracy.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import torch

from fewbits.records import Stage
from fewbits.solvers.krylov.problem import Problem
from fewbits.solvers.krylov.reliable import refine
from fewbits.solvers.krylov.space import Space, roundoff
from fewbits.solvers.krylov.stopping import MARGIN, Stopping
from fewbits.solvers.krylov.system import Callback, System, check_adjoint
from fewbits.solvers.operators.adapters import LinearMap
from fewbits.solvers.operators.operator import Operator
from fewbits.solvers.operators.vectors import wide
from fewbits.solvers.precision import KrylovPrecision
from fewbits.solvers.solution import Solution
from fewbits.typing import AnyArray, Array, Watch

POWERS = 4  # steps of the power method that bound |A| from below


class LeastSquares(Problem):
    """min |b - A y|; like :class:`Problem`, but also converges when A^H r is small relative to |A| |r|."""

    def __init__(self, a: Operator, b: torch.Tensor, **options: Any) -> None:
        self.adjoint, self.norm = a.adjoint(), 0.0
        super().__init__(a, b, **options)
        if options["stopping"].maxiter is None:
            self.maxiter = max(10 * max(a.rows, a.n), 100)
        # Where b is orthogonal to the columns of A, the residual of x0 alone says something of A.
        self.norm = self._bound(self.b) or self._bound(self.b - a.exact(self.best))
        self.least, self._met, self.optimality = math.inf, False, math.inf

    def _bound(self, start: torch.Tensor) -> float:
        """Return a bound of |A| from below, by the power method from A^H ``start``; 0 if that is zero."""
        bound, v = 0.0, self.adjoint.exact(start)
        for _ in range(POWERS):
            size = self.a.norm(v)
            if size == 0:
                break
            image = self.a.exact(v / size)
            bound = max(bound, self.a.norm(image))
            v = self.adjoint.exact(image)
        return bound

    @property
    def goes_on(self) -> bool:
        """Whether to start another cycle or to continue this one."""
        return not self._met and super().goes_on

    def merit(self, r: torch.Tensor) -> float:
        """Return |A^H r|, and note whether it is small enough; 0 where r is: nothing is better than that."""
        if self.claimed <= self.target:
            return 0.0
        size = self.a.norm(self.adjoint.exact(r))
        self._met = size <= MARGIN * self.rtol * self.norm * self.claimed
        return size

    def judge(self) -> tuple[float, bool]:
        """Return the norm of the residual of the x that is returned, and whether x is a solution."""
        r = self.judged()
        true, size = self.a.norm(r), self.a.norm(self.adjoint.exact(r))
        self.optimality = size / (self.norm * true) if self.norm * true > 0 else 0.0
        return true, true <= self.allowed or self.optimality <= self.rtol

    def solution(self, true: float, converged: bool, stages: tuple[Stage, ...]) -> Solution[torch.Tensor]:
        """Return the best solution with its evidence."""
        return replace(super().solution(true, converged, stages), optimality=self.optimality)


def lsqr(
    A: LinearMap,
    b: Array,
    x0: AnyArray | None = None,
    *,
    rtol: float = 1e-10,
    atol: float = 0.0,
    maxiter: int | None = None,
    callback: Callback[Array] | None = None,
    precision: str | KrylovPrecision = "auto",
    watch: Watch | None = None,
) -> Solution[Array]:
    """Solve A x = b for an A of any shape, or find the x with the least |b - A x|.

    If columns are linearly dependent and x0 is zero, x is the solution of least norm, up to the rounding of
    the vectors. An iteration takes a product with A and one with A^H.

    Args:
        A: (m, n): a matrix of NumPy, PyTorch or SciPy in any layout, nested lists, a LinearOperator with
            ``rmatvec``, or an :class:`Operator`; real or complex.
        b: (m,) or (m, k), real or complex.
        x0: initial guess, (n,) or (n, k); default zero.
        rtol: tolerance for the relative residual, at least 0 and below 1.
        atol: tolerance for the absolute residual, at least 0. The solver converges when |r| <= max(rtol |b|,
            atol) for r = b - A x, or |A^H r| <= rtol |A| |r|; the ratio |A^H r| / (|A| |r|) is the
            ``optimality`` of the result.
        maxiter: most iterations in each precision that is tried; default 10 max(m, n), but at least 100.
        callback: called with x, an array or tensor like b, after each iteration; computing x takes the time
            of one or two vector operations.
        precision: formats of A and of the vectors, as :func:`krylov_precision` reads them. ``auto`` tries the
            precision that the operator prefers (float32 unless it has its own) and then double. Complex
            numbers are stored as pairs of real ones.
        watch: called as ``watch(precision, iteration, residual)`` after each iteration; the residual is
            divided by |b|.

    Returns:
        the x of a precision with the smallest true |A^H r|, or one whose true residual r meets the tolerance,
        an array or tensor like b, with its evidence; ``converged`` says whether it meets the tolerance.

    Raises:
        ArgumentError: shapes do not fit, the adjoint of A is unknown, or what is given for it is another
            matrix, a tensor requires a gradient, or an option is out of range.
        DataError: the input holds NaN or infinity, or the solution is outside the range of float64.
    """
    system = System(A, b, x0=x0, square=False)
    system.kind = LeastSquares
    check_adjoint(system.a)

    def attempt(problem: Problem, tried: KrylovPrecision) -> None:
        assert isinstance(problem, LeastSquares)
        spaces = Space(problem.a, tried), Space(problem.adjoint, tried)
        refine(problem, lambda r: _cycle(problem, *spaces, r))

    return system.solve(
        "lsqr", precision, attempt, Stopping(rtol, atol, maxiter), callback=callback, watch=watch
    )


def _cycle(problem: LeastSquares, space: Space, adjoint: Space, r: torch.Tensor) -> torch.Tensor:
    """Return the x that minimizes |r - A x| over the Krylov space of A^H r: x = sum of f_i w_i."""
    norm, x = problem.a.norm, torch.zeros_like(problem.y)
    size2, g = problem.claimed**2, problem.adjoint.exact(r)
    theta = norm(g)
    enough = 4 * roundoff(space.precision) * theta
    if theta == 0:
        return x
    v = adjoint.rounded(g / theta)
    p = space.apply(v)
    rho = norm(p)
    f, w = theta / rho if rho > 0 else 0.0, v
    while problem.goes_on and rho > 0 and math.isfinite(rho):
        p = adjoint.rounded(p / rho)
        w = adjoint.rounded(w / rho)
        x = x + f * wide(w)
        size2 = max(size2 - f * f, 0.0)
        v_next = adjoint.apply(p) - rho * v
        theta = norm(v_next)
        problem.note(math.sqrt(size2), lambda x=x: x)  # type: ignore[misc]  # mypy gives a default of a lambda no type
        left = theta * abs(f)
        if left <= enough or left <= 0.5 * problem.rtol * problem.norm * math.sqrt(size2):
            break
        v = adjoint.rounded(v_next / theta)
        p = space.apply(v) - theta * p
        rho = norm(p)
        f = -theta * f / rho if rho > 0 else 0.0
        w = v - theta * w
    return x
