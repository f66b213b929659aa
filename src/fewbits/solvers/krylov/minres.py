"""MINRES whose Lanczos vectors are stored narrow, for symmetric matrices that need not be definite.

Paige and Saunders, Solution of sparse indefinite systems of linear equations, 1975. A cycle takes out what
the roundoff of its vectors allows; the next one begins with the residual in double precision.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch

from fewbits.errors import DataError
from fewbits.solvers.krylov.problem import Problem, Watcher
from fewbits.solvers.krylov.reliable import refine
from fewbits.solvers.krylov.result import KrylovResult
from fewbits.solvers.krylov.space import Space, roundoff
from fewbits.solvers.krylov.system import System, check_symmetric
from fewbits.solvers.operators.vectors import wide
from fewbits.solvers.precision import KrylovPrecision


def minres(
    a: Any,
    b: Any,
    *,
    precision: str | KrylovPrecision = "auto",
    rtol: float = 1e-10,
    maxiter: int | None = None,
    M: Any = None,
    x0: Any = None,
    callback: Callable[[Any], None] | None = None,
    watch: Watcher | None = None,
) -> KrylovResult:
    """Solve A x = b for a symmetric (Hermitian) A, definite or not.

    A singular A is solved where b lies in its range, and else left with ``converged`` false.

    Args, result and errors: :func:`fewbits.solvers.cg`; only M has to be positive definite.
    """
    system = System(a, b, x0=x0, M=M)
    check_symmetric(system.a)

    def attempt(problem: Problem, one: KrylovPrecision) -> None:
        space = Space(problem.a, one, problem.preconditioner)
        refine(problem, lambda r: _cycle(problem, space, r))

    return system.solve(
        "minres", precision, attempt, rtol=rtol, maxiter=maxiter, callback=callback, watch=watch
    )


def _cycle(problem: Problem, space: Space, r: torch.Tensor) -> torch.Tensor:
    """Return x that makes r - A x least (in the norm of M) among the Lanczos vectors that r begins."""
    size, x = problem.claimed, torch.zeros_like(problem.y)
    unit = roundoff(space.precision)
    # In the norm of M the target is not known: half of it is meant, and the true residual decides.
    enough = max(0.5 * problem.target if space.preconditioner else problem.target, 4 * unit * size)
    u = space.taken(r)
    z = space.preconditioned(u)
    beta = first = left = _length(problem, u, z)
    if not first > 0:
        return x
    before, w_before, w = torch.zeros_like(u), torch.zeros_like(u), torch.zeros_like(u)
    beta_before, norm = 1.0, 0.0
    cosine, sine, bar, epsilon = -1.0, 0.0, 0.0, 0.0
    while problem.goes_on:
        v = space.stored(z / beta)
        image = space.apply(v) - (beta / beta_before) * before
        alpha = problem.a.dot(v, image).real
        before, u = u, space.stored(image - (alpha / beta) * u)
        z = space.preconditioned(u)
        beta_before, beta = beta, _length(problem, u, z)
        # Rotate the new column of the tridiagonal matrix, and with it the right-hand side.
        epsilon_before, delta, gamma_bar = epsilon, cosine * bar + sine * alpha, sine * bar - cosine * alpha
        epsilon, bar = sine * beta, -cosine * beta
        norm = max(norm, math.hypot(alpha, beta))
        gamma = math.hypot(gamma_bar, beta)
        # Where A times the residual is rounding, the residual is the least there is: A is singular.
        if not math.isfinite(gamma) or math.hypot(gamma_bar, bar) <= unit * norm:
            break
        cosine, sine = gamma_bar / gamma, beta / gamma
        step, left = cosine * left, sine * left
        w_before, w = w, space.stored((v - epsilon_before * w_before - delta * w) / gamma)
        x = x + step * wide(w)
        problem.note(size * abs(left) / first, lambda x=x: x)  # type: ignore[misc]
        if problem.claimed <= enough or beta == 0:
            break
    return x


def _length(problem: Problem, u: torch.Tensor, z: torch.Tensor) -> float:
    """Return the norm of u that the preconditioner has; z is M u."""
    product = problem.a.dot(u, z).real
    if product < 0:
        raise DataError(f"M is not positive definite: u^H M u = {product:.3g}; minres needs that")
    return math.sqrt(product)
