"""Restarted flexible GMRES with a packed basis, and GCR.

Saad and Schultz, GMRES, 1986; Saad, A flexible inner-outer preconditioned GMRES algorithm, 1993; a basis in
fewer bits than the arithmetic: Aliaga et al., Compressed basis GMRES on high-performance GPUs, 2022. GCR:
Eisenstat, Elman and Schultz, Variational iterative methods for nonsymmetric systems, 1983.
"""

from __future__ import annotations

import math

import torch

from fewbits.solvers.flexible_gmres import flexible_gmres
from fewbits.solvers.krylov.problem import Partial, Problem, read_delta
from fewbits.solvers.krylov.reliable import Drop, refine
from fewbits.solvers.krylov.space import Packed, Space, roundoff
from fewbits.solvers.krylov.stopping import Stopping, check_count
from fewbits.solvers.krylov.system import Callback, System
from fewbits.solvers.operators.adapters import LinearMap
from fewbits.solvers.operators.vectors import wide
from fewbits.solvers.precision import KrylovPrecision
from fewbits.solvers.solution import Solution
from fewbits.typing import AnyArray, Array, Watch

LOST = 8  # times the roundoff: a share of an image that small is what rounding left of it


def gmres(
    A: LinearMap,
    b: Array,
    x0: AnyArray | None = None,
    *,
    rtol: float = 1e-10,
    atol: float = 0.0,
    restart: int = 50,
    maxiter: int | None = None,
    M: LinearMap | None = None,
    callback: Callback[Array] | None = None,
    precision: str | KrylovPrecision = "auto",
    watch: Watch | None = None,
) -> Solution[Array]:
    """Solve A x = b for a square A.

    Where it takes more than ``restart`` iterations, the residual may stay where it is.

    The basis is packed in the format of the vectors; products with A are float32, orthogonalization is
    float64. Every cycle starts from the residual in float64 and ends when rounding of the basis prevents
    progress.

    Args:
        A: (n, n): a matrix of NumPy, PyTorch or SciPy in any layout, nested lists, a LinearOperator, a
            function, or an :class:`Operator`; real or complex. A function takes and returns float64 or
            complex128 vectors, arrays or tensors like b.
        b: (n,) or (n, k), real or complex.
        x0: initial guess, of b's shape; default zero.
        rtol: tolerance for the relative residual, at least 0 and below 1.
        atol: tolerance for the absolute residual, at least 0. The solver converges when |b - A x| <= max(rtol
            |b|, atol) for the true residual in the 2-norm, as in scipy.sparse.linalg.
        restart: most vectors in the basis; ``maxiter`` counts iterations, not restarts.
        maxiter: most iterations in each precision that is tried; default 10 n, but at least 100.
        M: a preconditioner close to A^-1, in double precision:
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
        ArgumentError: shapes do not fit, a tensor requires a gradient, or an option is out of range.
        DataError: the input holds NaN or infinity, or the solution is outside the range of float64.
    """
    check_count(restart, "restart")
    system = System(A, b, x0=x0, M=M)

    def attempt(problem: Problem, tried: KrylovPrecision) -> None:
        space = Space(problem.a, tried, problem.preconditioner)
        refine(problem, lambda r: _cycle(problem, space, r, restart))

    return system.solve(
        "gmres", precision, attempt, Stopping(rtol, atol, maxiter), callback=callback, watch=watch
    )


def _cycle(problem: Problem, space: Space, r: torch.Tensor, restart: int) -> torch.Tensor:
    """Return the x that minimizes |r - A x| over the Krylov space of r."""
    size = problem.claimed
    # The rounding error of a basis vector bounds how far one cycle can reduce the residual.
    enough = max(problem.target, 4 * roundoff(space.precision) * size)

    def go_on(_: int, residuals: torch.Tensor, partial: Partial) -> bool:
        problem.note(float(residuals[0]), partial)
        return problem.claimed > enough and problem.goes_on

    sizes = torch.tensor([size], dtype=torch.float64)
    most = min(restart, problem.a.unknowns or problem.a.n)
    x, _ = flexible_gmres(_PackedBasis(space, r, sizes), sizes, r.dtype, maxiter=most, go_on=go_on)
    return x


class _PackedBasis:
    """The :class:`fewbits.solvers.flexible_gmres.Basis` of one right-hand side, packed in a format."""

    def __init__(self, space: Space, r: torch.Tensor, size: torch.Tensor) -> None:
        self._space = space
        self._vectors: list[Packed] = []
        self._directions: list[Packed] = []
        self.append(r, size)

    def expand(self) -> torch.Tensor:
        """Precondition the newest vector, store the direction, and return A times it, (n,)."""
        space, last = self._space, self._vectors[-1]
        v = space.preconditioned(space.unpacked(last))
        self._directions.append(last if space.preconditioner is None else space.packed(v))
        return wide(space.apply(v))

    def orthogonalize(self, w: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Orthogonalize w by modified Gram-Schmidt; return it with the coefficients removed, (1, j)."""
        parts = []
        for packed in self._vectors:
            u = wide(self._space.unpacked(packed))
            parts.append(self._space.operator.dot(u, w))
            w = w - parts[-1] * u
        return w, torch.tensor([parts], dtype=w.dtype)

    def norm(self, w: torch.Tensor) -> torch.Tensor:
        """Return the norm of w, (1,)."""
        return torch.tensor([self._space.operator.norm(w)], dtype=torch.float64)

    def append(self, w: torch.Tensor, length: torch.Tensor) -> None:
        """Add w / length."""
        self._vectors.append(self._space.packed(w / length[0]))

    def combine(self, weights: torch.Tensor) -> torch.Tensor:
        """Return the sum of the directions with these weights, (n,) in double precision."""
        a = self._space.operator
        x = torch.zeros(a.n, dtype=weights.dtype, device=a.device)
        for weight, packed in zip(weights[0].tolist(), self._directions, strict=False):
            x.add_(wide(self._space.unpacked(packed)), alpha=weight)
        return x


def gcr(
    A: LinearMap,
    b: Array,
    x0: AnyArray | None = None,
    *,
    rtol: float = 1e-10,
    atol: float = 0.0,
    restart: int = 20,
    maxiter: int | None = None,
    M: LinearMap | None = None,
    callback: Callback[Array] | None = None,
    precision: str | KrylovPrecision = "auto",
    delta: float | None = 0.1,
    watch: Watch | None = None,
) -> Solution[Array]:
    """Solve A x = b for a square A by the generalized conjugate residual method; M may vary.

    It suits an A for which x^H A x has a real part of one sign for all x, or an A M of that kind. Where a
    residual is orthogonal to its image, as with a skew-symmetric A, no step reduces it, and the iteration
    ends: gmres solves those too.

    The directions p, whose images A p are orthogonal, are packed with their images in the format of the
    vectors.

    Args:
        A: (n, n): a matrix of NumPy, PyTorch or SciPy in any layout, nested lists, a LinearOperator, a
            function, or an :class:`Operator`; real or complex. A function takes and returns float64 or
            complex128 vectors, arrays or tensors like b.
        b: (n,) or (n, k), real or complex.
        x0: initial guess, of b's shape; default zero.
        rtol: tolerance for the relative residual, at least 0 and below 1.
        atol: tolerance for the absolute residual, at least 0. The solver converges when |b - A x| <= max(rtol
            |b|, atol) for the true residual in the 2-norm, as in scipy.sparse.linalg.
        restart: most directions kept.
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
    check_count(restart, "restart")
    delta = read_delta(delta)
    system = System(A, b, x0=x0, M=M)

    def attempt(problem: Problem, tried: KrylovPrecision) -> None:
        _directions(problem, Space(problem.a, tried, problem.preconditioner), delta, restart)

    return system.solve(
        "gcr", precision, attempt, Stopping(rtol, atol, maxiter), callback=callback, watch=watch
    )


def _directions(problem: Problem, space: Space, delta: float | None, restart: int) -> None:
    dot, x = problem.a.dot, torch.zeros_like(problem.y)
    trigger = Drop(delta or 0.0)
    r = space.rounded_copy(problem.add(x))
    trigger.restart(problem.claimed, 0.0)
    held: list[tuple[Packed, Packed, float]] = []
    lost = LOST * roundoff(space.precision)
    nothing = LOST * 2.0 ** (-53 if space.precision.double else -24)
    while problem.goes_on:
        whole = space.preconditioned(r)
        whole_image = space.apply(whole)
        p, image = _orthogonalized(whole, whole_image, held, space)
        # Their roundings add up like the steps of a random walk.
        if held and problem.a.norm(image) <= lost * math.sqrt(len(held)) * problem.a.norm(whole_image):
            # The directions span what the residual leads to: the rest is rounding, and not the image of p.
            held, p, image = [], whole, whole_image
        packed = space.packed(p), space.packed(image)
        p, image = (space.unpacked(v) for v in packed)
        length2 = dot(image, image).real
        if length2 == 0 or not math.isfinite(length2):
            break
        along = dot(image, r)
        # Breakdown: from the same residual come the same p and image, and a step of zero again.
        if abs(along) <= nothing * math.sqrt(length2) * problem.a.norm(r):
            break
        alpha = along / length2
        following = space.rounded(r - alpha * image)
        size = problem.a.norm(following)
        if not math.isfinite(size):
            break
        r, x = following, x + alpha * wide(p)
        problem.note(size, lambda x=x: x)  # type: ignore[misc]  # mypy gives a default of a lambda no type
        held.append((*packed, length2))
        reliable = delta is not None and (
            trigger.fires(problem.claimed, 0.0) or problem.claimed <= problem.target
        )
        if reliable or len(held) == restart:
            held = [] if len(held) == restart else held
            if delta is not None:
                problem.updates += 1
                r = space.rounded_copy(problem.add(x))
                x = torch.zeros_like(x)
                trigger.restart(problem.claimed, 0.0)
    problem.finish(x)


def _orthogonalized(
    p: torch.Tensor, image: torch.Tensor, held: list[tuple[Packed, Packed, float]], space: Space
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return p and its image, the image orthogonal to those of the directions held."""
    for direction, its, length2 in held:
        u = space.unpacked(its)
        part = space.operator.dot(u, image) / length2
        image = image - part * u
        p = p - part * space.unpacked(direction)
    return p, image
