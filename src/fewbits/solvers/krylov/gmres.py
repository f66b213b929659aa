"""Restarted flexible GMRES whose basis is kept packed, and GCR.

Saad and Schultz, GMRES, 1986; Saad, A flexible inner-outer preconditioned GMRES algorithm, 1993; a basis in
fewer bits than the arithmetic: Aliaga et al., Compressed basis GMRES on high-performance GPUs, 2022. GCR:
Eisenstat, Elman and Schultz, Variational iterative methods for nonsymmetric systems, 1983.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch

from fewbits.errors import ArgumentError
from fewbits.solvers.krylov.problem import Problem, Watcher, check_delta
from fewbits.solvers.krylov.reliable import Drop, refine
from fewbits.solvers.krylov.result import KrylovResult
from fewbits.solvers.krylov.space import Space, roundoff
from fewbits.solvers.krylov.system import System
from fewbits.solvers.precision import KrylovPrecision
from fewbits.solvers.vectors import wide


def gmres(
    a: Any,
    b: Any,
    *,
    precision: str | KrylovPrecision = "auto",
    rtol: float = 1e-10,
    restart: int = 50,
    maxiter: int | None = None,
    M: Any = None,
    x0: Any = None,
    callback: Callable[[Any], None] | None = None,
    watch: Watcher | None = None,
) -> KrylovResult:
    """Solve A x = b for a square A.

    The basis is packed in the format of the vectors; the product is float32, orthogonalization float64. Every
    cycle begins with the residual in float64, and ends where the basis can say no more.

    Args, result and errors: :func:`fewbits.solvers.cg`, without the conditions on A and M.
        restart: vectors in the basis at most.
    """
    _check_restart(restart)
    system = System(a, b, x0=x0, M=M)

    def attempt(problem: Problem, one: KrylovPrecision) -> None:
        space = Space(problem.a, one, problem.preconditioner)
        refine(problem, lambda r: _cycle(problem, space, r, restart))

    return system.solve(
        "gmres", precision, attempt, rtol=rtol, maxiter=maxiter, callback=callback, watch=watch
    )


def _cycle(problem: Problem, space: Space, r: torch.Tensor, restart: int) -> torch.Tensor:
    """Return the x that makes |r - A x| least in the space that r spans."""
    dot, size = problem.a.dot, problem.claimed
    # What rounding leaves of a basis vector bounds what one cycle can take out.
    enough = max(problem.target, 4 * roundoff(space.precision) * size)
    basis, directions = [space.packed(r / size)], list[Any]()
    h = torch.zeros(restart + 1, restart, dtype=r.dtype)
    y = torch.zeros(0, dtype=r.dtype)

    def combined() -> torch.Tensor:
        x = torch.zeros_like(problem.y)
        for weight, one in zip(y.tolist(), directions, strict=False):
            x.add_(wide(space.unpacked(one)), alpha=weight)
        return x

    for j in range(restart):
        v = space.preconditioned(space.unpacked(basis[j]))
        directions.append(basis[j] if space.preconditioner is None else space.packed(v))
        w = wide(space.apply(v))
        before = problem.a.norm(w)
        for _ in range(2):  # the vectors of the basis are orthogonal only as far as they are rounded
            for i, one in enumerate(basis):
                u = wide(space.unpacked(one))
                part = dot(u, w)
                h[i, j] += part
                w = w - part * u
        h[j + 1, j] = length = problem.a.norm(w)
        if not math.isfinite(length):
            break  # y is still that of the iteration before
        start = torch.zeros(j + 2, 1, dtype=r.dtype)
        start[0] = size
        small = h[: j + 2, : j + 1]
        y = torch.linalg.lstsq(small, start).solution[:, 0]
        problem.note(float(torch.linalg.vector_norm(start[:, 0] - small @ y)), combined)
        if problem.claimed <= enough or length <= 1e-14 * before or not problem.goes_on:
            break
        basis.append(space.packed(w / length))
    return combined()


def gcr(
    a: Any,
    b: Any,
    *,
    precision: str | KrylovPrecision = "auto",
    rtol: float = 1e-10,
    delta: float | None = 0.1,
    restart: int = 20,
    maxiter: int | None = None,
    M: Any = None,
    x0: Any = None,
    callback: Callable[[Any], None] | None = None,
    watch: Watcher | None = None,
) -> KrylovResult:
    """Solve A x = b for a square A, by directions whose images are orthogonal; the preconditioner may vary.

    Directions and images are packed in the format of the vectors.

    Args, result and errors: :func:`fewbits.solvers.cg`, without the conditions on A and M.
        restart: directions kept at most.
    """
    _check_restart(restart)
    check_delta(delta)
    system = System(a, b, x0=x0, M=M)

    def attempt(problem: Problem, one: KrylovPrecision) -> None:
        _directions(problem, Space(problem.a, one, problem.preconditioner), delta, restart)

    return system.solve("gcr", precision, attempt, rtol=rtol, maxiter=maxiter, callback=callback, watch=watch)


def _directions(problem: Problem, space: Space, delta: float | None, restart: int) -> None:
    dot, x = problem.a.dot, torch.zeros_like(problem.y)
    trigger = Drop(delta or 0.0)
    r = space.taken(problem.add(x))
    trigger.restart(problem.claimed, 0.0)
    kept: list[tuple[Any, Any, float]] = []
    while problem.goes_on:
        p = space.preconditioned(r)
        image = space.apply(p)
        for direction, its, length2 in kept:
            u = space.unpacked(its)
            part = dot(u, image) / length2
            image = image - part * u
            p = p - part * space.unpacked(direction)
        packed = space.packed(p), space.packed(image)
        p, image = (space.unpacked(one) for one in packed)
        length2 = dot(image, image).real
        if length2 == 0 or not math.isfinite(length2):
            break
        alpha = dot(image, r) / length2
        following = space.stored(r - alpha * image)
        size = problem.a.norm(following)
        if not math.isfinite(size):
            break
        r, x = following, x + alpha * wide(p)
        problem.note(size, lambda x=x: x)  # type: ignore[misc]
        kept.append((*packed, length2))
        reliable = delta is not None and (
            trigger.fires(problem.claimed, 0.0) or problem.claimed <= problem.target
        )
        if reliable or len(kept) == restart:
            kept = [] if len(kept) == restart else kept
            if delta is not None:
                problem.updates += 1
                r = space.taken(problem.add(x))
                x = torch.zeros_like(x)
                trigger.restart(problem.claimed, 0.0)
    problem.finish(x)


def _check_restart(restart: int) -> None:
    if restart < 1:
        raise ArgumentError(f"restart={restart}; expected at least 1")
