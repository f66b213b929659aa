"""Conjugate gradients with vectors stored in narrow formats; reliable updates recompute the residual.

Clark et al., Solving Lattice QCD systems of equations using mixed precision solvers on GPUs, 2010, section 5;
the library QUDA has the triggers, the Polak-Ribiere step and the re-projection.
"""

from __future__ import annotations

import math

from fewbits.errors import ArgumentError, DataError
from fewbits.solvers.krylov.deflation import Deflation
from fewbits.solvers.krylov.problem import Problem, read_delta
from fewbits.solvers.krylov.reliable import Deviation, Drop, Trigger
from fewbits.solvers.krylov.space import Space, roundoff
from fewbits.solvers.krylov.stopping import Stopping
from fewbits.solvers.krylov.system import Callback, System, check_symmetric
from fewbits.solvers.krylov.torch_vectors import TorchVectors
from fewbits.solvers.operators.adapters import LinearMap
from fewbits.solvers.operators.cg_vectors import CGVectors
from fewbits.solvers.operators.operator import Operator
from fewbits.solvers.operators.vectors import times_power
from fewbits.solvers.precision import KrylovPrecision
from fewbits.solvers.solution import Solution
from fewbits.typing import AnyArray, Array, Watch

# A curvature below this share of |A| |p|^2 is rounding.
FLAT = 1e-13


def cg(
    A: LinearMap,
    b: Array,
    x0: AnyArray | None = None,
    *,
    rtol: float = 1e-10,
    atol: float = 0.0,
    maxiter: int | None = None,
    M: LinearMap | None = None,
    callback: Callback[Array] | None = None,
    precision: str | KrylovPrecision = "auto",
    delta: float | None = 0.1,
    trigger: str = "drop",
    deflation: Deflation | None = None,
    watch: Watch | None = None,
) -> Solution[Array]:
    """Solve A x = b for a symmetric (Hermitian) positive definite A.

    A and b are scaled by powers of two first. Search direction and residual are rounded whenever they are
    stored; arithmetic is float32 and dot products are float64. Whenever the residual has fallen by the factor
    ``delta``, the partial solution is added to x in float64 and the residual is recomputed in float64.

    Args:
        A: (n, n), Hermitian positive definite: a matrix of NumPy, PyTorch or SciPy in any layout, nested
            lists, a LinearOperator, a function, or an :class:`Operator`; real or complex. A function takes
            and returns float64 or complex128 vectors, arrays or tensors like b.
        b: (n,) or (n, k), real or complex.
        x0: initial guess, of b's shape; default zero.
        rtol: tolerance for the relative residual, at least 0 and below 1.
        atol: tolerance for the absolute residual, at least 0. The solver converges when |b - A x| <= max(rtol
            |b|, atol) for the true residual in the 2-norm, as in scipy.sparse.linalg.
        maxiter: most iterations in each precision that is tried; default 10 n, but at least 100.
        M: a preconditioner close to A^-1, Hermitian positive definite, in double precision:
            ``scipy.sparse.linalg.spilu(A).solve`` or another function, a LinearOperator or a matrix.
        callback: called with x, an array or tensor like b, after each iteration; computing x takes the time
            of one or two vector operations.
        precision: formats of A and of the vectors, as :func:`krylov_precision` reads them. ``auto`` tries the
            precision that the operator prefers (float32 unless it has its own) and then double. Complex
            numbers are stored as pairs of real ones.
        delta: the true residual is computed in float64 whenever the recurrence's residual has fallen by this
            factor. None for no such updates: the final residual may then be larger than the recurrence
            claims.
        trigger: when to recompute the residual: ``drop`` by ``delta``, ``deviation`` by a bound on the error
            of the recurrence.
        deflation: a basis of low modes, projected out of every true residual.
        watch: called as ``watch(precision, iteration, residual)`` after each iteration; the residual is
            divided by |b|.

    Returns:
        the x with the smallest true residual, an array or tensor like b, with its evidence; ``converged``
        says whether it meets the tolerance.

    Raises:
        ArgumentError: shapes that do not fit, an A that is not Hermitian, tensors that require gradients, or
            an option out of range.
        DataError: NaN or infinity, a direction of negative curvature, as A is not positive definite, an M
            that is not, or a solution beyond the range of float64.
    """
    delta = read_delta(delta)
    if trigger not in ("drop", "deviation"):
        raise ArgumentError(f"trigger={trigger!r}; expected drop or deviation")
    if deflation is not None and not isinstance(deflation, Deflation):
        raise ArgumentError(
            f"deflation is a {type(deflation).__name__}; expected a Deflation, made of A and its low modes"
        )
    system = System(A, b, x0=x0, M=M, pairs=deflation is not None and deflation.a.complex)
    check_symmetric(system.a)
    if deflation is not None and deflation.a.n != system.a.n:
        raise ArgumentError(
            f"a deflation of {deflation.a.n} unknowns for {system.a.n}; make it of this A and its modes"
        )

    def attempt(problem: Problem, tried: KrylovPrecision) -> None:
        own = problem.a.cg_vectors(tried) if M is None else None
        vectors = TorchVectors(Space(problem.a, tried, problem.preconditioner)) if own is None else own
        when: Trigger | None = None
        if delta is not None:
            when = Drop(delta) if trigger == "drop" else _deviation(problem, tried)
        _Iteration(problem, vectors, when, deflation, system.exponent, tried.double).run()

    return system.solve(
        "cg", precision, attempt, Stopping(rtol, atol, maxiter), callback=callback, watch=watch
    )


def _deviation(problem: Problem, tried: KrylovPrecision) -> Deviation:
    return Deviation(roundoff(tried), problem.a.norm(problem.a.exact(problem.b)) / problem.size)


class _Iteration:
    """Conjugate gradients started at problem.y; the x of the vectors is the correction since then."""

    def __init__(
        self,
        problem: Problem,
        vectors: CGVectors,
        trigger: Trigger | None,
        deflation: Deflation | None,
        exponent: int,
        double: bool,
    ) -> None:
        self.problem, self.vectors, self.trigger, self.deflation = problem, vectors, trigger, deflation
        self.exponent, self.double = exponent, double

    def run(self) -> None:
        """Iterate until the problem has converged or its budget is used up."""
        problem, vectors, trigger = self.problem, self.vectors, self.trigger
        rz, _ = self._load()
        gamma, beta = 1.0, 0.0
        while problem.goes_on and rz > 0:
            curvature, length2 = vectors.update_direction(gamma, beta)
            if not curvature > 0:
                self._refuse_negative(curvature, length2)
                return
            alpha, before = rz / curvature, rz
            rr, rz, mixed = vectors.update_residual(alpha)
            if not math.isfinite(rr) or not math.isfinite(rz):
                return
            problem.note(math.sqrt(rr), vectors.partial_solution)
            if trigger is not None:
                fires = trigger.fires(problem.claimed, alpha * math.sqrt(length2))
                if fires or problem.claimed <= problem.target:
                    problem.updates += 1
                    rz, rp = self._load()
                    # The direction must stay orthogonal to the residual it came from.
                    beta = rz / before
                    gamma = 1.0 - beta * rp / rz if rz > 0 else 1.0
                    continue
            # Polak and Ribiere: subtracts the part of the old residual that rounding left in the new one.
            sigma = rz - mixed
            gamma, beta = 1.0, (sigma if sigma > 0 else rz) / before
        problem.finish(vectors.partial_solution())
        if problem.goes_on and problem.preconditioner is not None:
            self._refuse_indefinite(problem.preconditioner)

    def _load(self) -> tuple[float, float]:
        """Add the partial x to the solution and load the true residual; return r.z and r.p."""
        problem = self.problem
        # Narrow vectors drift from the true residual: what their recurrence tells is no reason to go on.
        exact = problem.add(self.vectors.partial_solution(), swings=self.double)
        if self.deflation is not None:
            # The first correction reduces the error even if it increases the residual.
            exponent = self.deflation.exponent - self.exponent
            step = times_power(self.deflation.scaled_correction(exact), exponent).to(exact.dtype)
            exact = problem.improve(step, exact) if problem.updates else problem.add(step)
        if self.trigger is not None:
            self.trigger.restart(problem.claimed, problem.a.norm(problem.y))
        _, rz, rp = self.vectors.load(exact)
        return rz, rp

    def _refuse_negative(self, curvature: float, length2: float) -> None:
        """Raise DataError if A has a direction of negative curvature.

        The curvature of a rounded A may be negative only by rounding, so r is tested with A itself.
        """
        a = self.problem.a
        r = self.problem.add(self.vectors.partial_solution())
        if not self.double:
            curvature, length2 = a.dot(r, a.exact(r)).real, a.dot(r, r).real
        if curvature < -FLAT * a.magnitude() * length2:
            raise DataError(
                f"A is not positive definite: p^H A p = {curvature / length2:.3g} |p|^2 in iteration"
                f" {len(self.problem.history) + 1}; conjugate gradients need a symmetric positive definite"
                " matrix, minres a symmetric one"
            )

    def _refuse_indefinite(self, preconditioner: Operator) -> None:
        """Raise DataError if r^H M r is negative beyond rounding, which r^H z may be by rounding alone."""
        a = self.problem.a
        r = self.problem.b - a.exact(self.problem.y)
        z = preconditioner.exact(r)
        product, sizes = a.dot(r, z).real, a.norm(r) * a.norm(z)
        if product < -FLAT * sizes or sizes == 0:
            raise DataError(
                f"M is not positive definite: r^H M r = {product:.3g} for the residual r of iteration"
                f" {len(self.problem.history)}; conjugate gradients need that"
            )
