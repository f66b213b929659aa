"""Conjugate gradients whose vectors are stored narrow, with reliable updates that keep the residual true.

Clark et al., Solving Lattice QCD systems of equations using mixed precision solvers on GPUs, 2010, section 5;
the library QUDA has the triggers, the Polak-Ribiere step and the re-projection.
"""

from __future__ import annotations

import math

from fewbits.errors import ArgumentError, DataError
from fewbits.solvers.krylov.deflation import Deflation
from fewbits.solvers.krylov.problem import Problem, check_delta
from fewbits.solvers.krylov.reliable import Deviation, Drop, Trigger
from fewbits.solvers.krylov.space import Space, roundoff
from fewbits.solvers.krylov.stopping import Stopping
from fewbits.solvers.krylov.system import Callback, System, check_symmetric
from fewbits.solvers.krylov.torch_vectors import TorchVectors
from fewbits.solvers.operators.adapters import LinearMap
from fewbits.solvers.operators.cg_vectors import CGVectors
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
    stored, arithmetic is float32, sums are float64, and x is accumulated apart and added up in float64.
    Whenever the residual has fallen by ``delta``, it is computed anew in float64.

    Args:
        A: (n, n), Hermitian positive definite: a matrix of NumPy, PyTorch or SciPy in any layout, nested
            lists, a LinearOperator, a function, or an :class:`Operator`; real or complex. A function takes
            and returns vectors of b's family, float64 or complex128.
        b: (n,) or (n, k), real or complex.
        x0: a first solution, of b's shape; zero by default.
        rtol: a relative residual, at least 0 and below 1.
        atol: an absolute one, at least 0. Converged is |b - A x| <= max(rtol |b|, atol), 2-norms of the true
            residual, as in scipy.sparse.linalg.
        maxiter: iterations of each precision that is tried; 10 n, and 100 at least, by default.
        M: a preconditioner close to A^-1, Hermitian positive definite, in double precision:
            ``scipy.sparse.linalg.spilu(A).solve`` or another function, a LinearOperator or a matrix.
        callback: called with x, of b's family, after each iteration, which costs a vector or two.
        precision: what A and the vectors are held in, see :func:`krylov_precision`; ``auto`` is the
            operator's own, float32 where it has none, and double where that does not converge. Complex
            numbers are held as pairs of real ones.
        delta: the residual is computed anew in float64 whenever it has fallen by this factor; None for no
            such updates: the solver then ends with a residual that may not be what it claims.
        trigger: ``drop`` computes the residual anew by ``delta``, ``deviation`` by a bound on the error of
            the recurrence.
        deflation: low modes, taken out of every true residual.
        watch: called as ``watch(precision, iteration, residual)`` after each iteration, the residual over
            |b|.

    Returns:
        the x with the least true residual, of b's family, with its evidence; ``converged`` says whether that
        is small enough.

    Raises:
        ArgumentError: shapes that do not fit, an A that is not Hermitian, tensors that require gradients, or
            an option out of range.
        DataError: NaN or infinity, a direction of negative curvature, as A is not positive definite, or a
            solution beyond the range of float64.
    """
    check_delta(delta)
    if trigger not in ("drop", "deviation"):
        raise ArgumentError(f"trigger={trigger!r}; expected drop or deviation")
    system = System(A, b, x0=x0, M=M, pairs=deflation is not None and deflation.a.complex)
    check_symmetric(system.a)

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
    """Conjugate gradients from problem.y; the vectors' x is what was found since."""

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
        """Iterate until the problem has enough."""
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
                    # The direction has to stay at right angles to the residual it came from.
                    beta = rz / before
                    gamma = 1.0 - beta * rp / rz if rz > 0 else 1.0
                    continue
            # Polak and Ribiere: what rounding left of the old residual in the new one is taken out.
            sigma = rz - mixed
            gamma, beta = 1.0, (sigma if sigma > 0 else rz) / before
        problem.finish(vectors.partial_solution())

    def _load(self) -> tuple[float, float]:
        """Move the vectors' x to the solution and give it the true residual; return r.z and r.p."""
        problem = self.problem
        exact = problem.add(self.vectors.partial_solution())
        if self.deflation is not None:
            # The first correction takes from the error even where it adds to the residual.
            exponent = self.deflation.exponent - self.exponent
            step = times_power(self.deflation.scaled_correction(exact), exponent).to(exact.dtype)
            exact = problem.improve(step, exact) if problem.updates else problem.add(step)
        if self.trigger is not None:
            self.trigger.restart(problem.claimed, problem.a.norm(problem.y))
        _, rz, rp = self.vectors.load(exact)
        return rz, rp

    def _refuse_negative(self, curvature: float, length2: float) -> None:
        """Raise DataError if A has a direction of negative curvature.

        That of a rounded A may be rounding, so r is tried with A itself.
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
