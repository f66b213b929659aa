"""MINRES with Lanczos vectors stored in narrow formats, for symmetric matrices, definite or not.

Paige and Saunders, Solution of sparse indefinite systems of linear equations, 1975. A cycle reduces the
residual as far as the rounding of its vectors allows; the next one starts from the residual in double
precision.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch

from fewbits.errors import DataError
from fewbits.solvers.krylov.problem import Problem
from fewbits.solvers.krylov.reliable import refine
from fewbits.solvers.krylov.space import Space, roundoff
from fewbits.solvers.krylov.stopping import Stopping
from fewbits.solvers.krylov.system import Callback, System, check_symmetric
from fewbits.solvers.operators.adapters import LinearMap
from fewbits.solvers.operators.vectors import wide
from fewbits.solvers.precision import KrylovPrecision
from fewbits.solvers.solution import Solution
from fewbits.typing import AnyArray, Array, Watch

FALSE = 2  # times the residual before: what should have fallen and lies above is rounding error


@dataclass
class _Known:
    """What the cycles of an attempt have found out about A.

    Attributes:
        norm: a bound of |A| from below.
        singular: whether steps from where A takes the residual to almost nothing went wrong.
    """

    norm: float = 0.0
    singular: bool = False


def minres(
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
    watch: Watch | None = None,
) -> Solution[Array]:
    """Solve A x = b for a symmetric (Hermitian) A, definite or not.

    A singular A is solved if b is in its range; else ``converged`` is false, and x is one of nearly the least
    residual.

    Args:
        A: (n, n), Hermitian: a matrix of NumPy, PyTorch or SciPy in any layout, nested lists, a
            LinearOperator, a function, or an :class:`Operator`; real or complex. A function takes and returns
            float64 or complex128 vectors, arrays or tensors like b.
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
        watch: called as ``watch(precision, iteration, residual)`` after each iteration; the residual is
            divided by |b|.

    Returns:
        the x with the smallest true residual, an array or tensor like b, with its evidence; ``converged``
        says whether it meets the tolerance.

    Raises:
        ArgumentError: shapes that do not fit, an A that is not Hermitian, tensors that require gradients, or
            an option out of range.
        DataError: NaN or infinity, an M that is not positive definite, or a solution beyond the range of
            float64.
    """
    system = System(A, b, x0=x0, M=M)
    check_symmetric(system.a)

    def attempt(problem: Problem, tried: KrylovPrecision) -> None:
        space, known = Space(problem.a, tried, problem.preconditioner), _Known()
        refine(problem, lambda r: _cycle(problem, space, r, known))

    return system.solve(
        "minres", precision, attempt, Stopping(rtol, atol, maxiter), callback=callback, watch=watch
    )


def _cycle(problem: Problem, space: Space, r: torch.Tensor, known: _Known) -> torch.Tensor:
    """Return the x that minimizes r - A x in the norm of M over the Krylov space of r.

    Where A takes the residual to almost nothing, A may be singular, and the residual the least. Steps along a
    vector of its null space are magnified rounding error, which the recurrence does not see.
    """
    size, x = problem.claimed, torch.zeros_like(problem.y)
    unit = roundoff(space.precision)
    # The target is not known in the norm of M. Half of it is used; the true residual decides.
    enough = max(0.5 * problem.target if space.preconditioner else problem.target, 4 * unit * size)
    u = space.rounded_copy(r)
    z = space.preconditioned(u)
    beta = first = left = _length(problem, u, z)
    if not first > 0:
        return x
    before, w_before, w = torch.zeros_like(u), torch.zeros_like(u), torch.zeros_like(u)
    beta_before, doubt = 1.0, None
    cosine, sine, bar, epsilon = -1.0, 0.0, 0.0, 0.0
    while problem.goes_on:
        v = space.rounded(z / beta)
        image = space.apply(v) - (beta / beta_before) * before
        alpha = problem.a.dot(v, image).real
        before, u = u, space.rounded(image - (alpha / beta) * u)
        z = space.preconditioned(u)
        beta_before, beta = beta, _length(problem, u, z)
        # Rotate the new column of the tridiagonal matrix, and with it the right-hand side.
        epsilon_before, delta, gamma_bar = epsilon, cosine * bar + sine * alpha, sine * bar - cosine * alpha
        epsilon, bar = sine * beta, -cosine * beta
        known.norm = max(known.norm, math.hypot(alpha, beta))
        gamma, image_of_r = math.hypot(gamma_bar, beta), math.hypot(gamma_bar, bar)
        small = math.sqrt(unit) * known.norm
        # If A times the residual is only rounding error, the residual is minimal and A is singular.
        if not math.isfinite(gamma) or image_of_r <= (small if known.singular else unit * known.norm):
            break
        if doubt is None and image_of_r <= small:
            doubt = _Doubt(problem, space, r, x)
        cosine, sine = gamma_bar / gamma, beta / gamma
        step, left = cosine * left, sine * left
        w_before, w = w, space.rounded((v - epsilon_before * w_before - delta * w) / gamma)
        x = x + step * wide(w)
        problem.note(size * abs(left) / first, lambda x=x: x)  # type: ignore[misc]  # mypy gives a default of a lambda no type
        if problem.claimed <= enough or beta == 0 or (doubt and doubt.is_due() and doubt.refutes(x)):
            break
    after = 0.0 if doubt is None else doubt.size(x)
    if doubt is None or after <= doubt.before:
        return x
    known.singular |= after > FALSE * doubt.before
    return doubt.x


class _Doubt:
    """Holds the recurrence to the truth, at ever longer intervals.

    Attributes:
        x: that of the cycle when doubt arose.
        before: the size of its true residual.
    """

    def __init__(self, problem: Problem, space: Space, r: torch.Tensor, x: torch.Tensor) -> None:
        self._problem, self._space, self._r, self._steps = problem, space, r, 0
        self.x, self.before = x, self.size(x)

    def size(self, x: torch.Tensor) -> float:
        """Return the norm of r - A x in the inner product of M, in double precision."""
        left = self._r - self._problem.a.exact(x)
        return _length(self._problem, left, wide(self._space.preconditioned(left)))

    def is_due(self) -> bool:
        """Count a step, and return whether to look after it: after 1, 2, 4, 8 and so on."""
        self._steps += 1
        return self._steps & (self._steps - 1) == 0

    def refutes(self, x: torch.Tensor) -> bool:
        """Return whether the residual of x is larger than before, although no step lets it grow."""
        return not self.size(x) <= self.before


def _length(problem: Problem, u: torch.Tensor, z: torch.Tensor) -> float:
    """Return the norm of u in the inner product of M; z is M u."""
    product = problem.a.dot(u, z).real
    if product < 0:
        raise DataError(f"M is not positive definite: u^H M u = {product:.3g}; minres needs that")
    return math.sqrt(product)
