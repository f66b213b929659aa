"""BiCGstab with vectors stored in narrow formats, with reliable updates.

Van der Vorst, Bi-CGSTAB, SIAM J. Sci. Stat. Comput. 13, 1992; Sleijpen and van der Vorst, Reliable updated
residuals in hybrid Bi-CG methods, 1996; with narrow vectors: Clark et al., Solving Lattice QCD systems of
equations using mixed precision solvers on GPUs, 2010.
"""

from __future__ import annotations

import math

import torch

from fewbits.solvers.krylov.problem import Problem, read_delta
from fewbits.solvers.krylov.reliable import Drop
from fewbits.solvers.krylov.space import Space
from fewbits.solvers.krylov.stopping import Stopping
from fewbits.solvers.krylov.system import Callback, System
from fewbits.solvers.operators.adapters import LinearMap
from fewbits.solvers.operators.vectors import wide
from fewbits.solvers.precision import KrylovPrecision
from fewbits.solvers.solution import Solution
from fewbits.typing import AnyArray, Array, Watch

BREAKDOWN = 1e-12  # cosine between residual and shadow residual below which the recurrence breaks down


def bicgstab(
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
    watch: Watch | None = None,
) -> Solution[Array]:
    """Solve A x = b for a square A; each iteration takes two products with A.

    It suits matrices whose eigenvalues lie to one side of zero. It breaks down on some, skew-symmetric ones
    among them, and ends there: gmres solves those too.

    Args:
        A: (n, n): a matrix of NumPy, PyTorch or SciPy in any layout, nested lists, a LinearOperator, a
            function, or an :class:`Operator`; real or complex. A function takes and returns float64 or
            complex128 vectors, arrays or tensors like b.
        b: (n,) or (n, k), real or complex.
        x0: initial guess, of b's shape; default zero.
        rtol: tolerance for the relative residual, at least 0 and below 1.
        atol: tolerance for the absolute residual, at least 0. The solver converges when |b - A x| <= max(rtol
            |b|, atol) for the true residual in the 2-norm, as in scipy.sparse.linalg.
        maxiter: most iterations in each precision that is tried; default 10 n, but at least 100.
        M: a preconditioner close to A^-1, in double precision:
            ``scipy.sparse.linalg.spilu(A).solve`` or another function, a LinearOperator or a matrix.
        callback: called with x, an array or tensor like b, after each iteration; computing x takes the time
            of one or two vector operations.
        precision: formats of A and of the vectors, as :func:`krylov_precision` reads them. ``auto`` tries the
            precision that the operator prefers (float32 unless it has its own) and then double. Complex
            numbers are stored as pairs of real ones.
        delta: the true residual is computed in float64 whenever the recurrence's residual has fallen by this
            factor. None for no such updates: the final residual may then be larger than the recurrence
            claims.
        watch: called as ``watch(precision, iteration, residual)`` after each iteration; the residual is
            divided by |b|.

    Returns:
        the x with the smallest true residual, an array or tensor like b, with its evidence; ``converged``
        says whether it meets the tolerance.

    Raises:
        ArgumentError: shapes do not fit, a tensor requires a gradient, or an option is out of range.
        DataError: the input holds NaN or infinity, or the solution is outside the range of float64.
    """
    delta = read_delta(delta)
    system = System(A, b, x0=x0, M=M)

    def attempt(problem: Problem, tried: KrylovPrecision) -> None:
        _iterate(problem, Space(problem.a, tried, problem.preconditioner), delta)

    return system.solve(
        "bicgstab", precision, attempt, Stopping(rtol, atol, maxiter), callback=callback, watch=watch
    )


def _iterate(problem: Problem, space: Space, delta: float | None) -> None:
    dot, norm, zero = problem.a.dot, problem.a.norm, torch.zeros_like(problem.y)
    trigger = Drop(delta or 0.0)
    r = space.rounded_copy(problem.add(zero))
    trigger.restart(problem.claimed, 0.0)
    shadow, p, x = r, r, zero
    rho = dot(shadow, r)
    while problem.goes_on:
        towards = space.preconditioned(p)
        v = space.rounded(space.apply(towards))
        across = dot(shadow, v)
        if not abs(across) > BREAKDOWN * norm(shadow) * norm(v):
            # Breakdown: restart from the true residual as the new shadow residual.
            problem.updates += 1
            r = space.rounded_copy(problem.add(x))
            x = zero
            image = space.rounded(space.apply(space.preconditioned(r)))
            if not abs(dot(r, image)) > BREAKDOWN * norm(r) * norm(image):
                return
            shadow, p, rho = r, r, dot(r, r)
            problem.note(problem.claimed, lambda: zero)
            continue
        alpha = rho / across
        s = space.rounded(r - alpha * v)
        half = space.preconditioned(s)
        t = space.rounded(space.apply(half))
        length = dot(t, t).real
        omega = dot(t, s) / length if length > 0 else 0.0
        following = x + alpha * wide(towards) + omega * wide(half)
        r = space.rounded(s - omega * t)
        size = norm(r)
        if not math.isfinite(size):
            break
        x = following
        problem.note(size, lambda x=x: x)  # type: ignore[misc]  # mypy gives a default of a lambda no type
        if delta is not None and (trigger.fires(size, 0.0) or size <= problem.target):
            problem.updates += 1
            r = space.rounded_copy(problem.add(x))
            x = zero
            trigger.restart(problem.claimed, 0.0)
        before, rho = rho, dot(shadow, r)
        if omega == 0 or before == 0:
            shadow, p, rho = r, r, dot(r, r)
            continue
        p = space.rounded(r + (rho / before) * (alpha / omega) * (p - omega * v))
    problem.finish(x)
