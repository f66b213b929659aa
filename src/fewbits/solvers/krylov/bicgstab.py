"""BiCGstab whose vectors are stored narrow, with reliable updates.

Van der Vorst, Bi-CGSTAB, SIAM J. Sci. Stat. Comput. 13, 1992; Sleijpen and van der Vorst, Reliable updated
residuals in hybrid Bi-CG methods, 1996; with narrow vectors: Clark et al., Solving Lattice QCD systems of
equations using mixed precision solvers on GPUs, 2010.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch

from fewbits.solvers.krylov.problem import Problem, Watcher, check_delta
from fewbits.solvers.krylov.reliable import Drop
from fewbits.solvers.krylov.result import KrylovResult
from fewbits.solvers.krylov.space import Space
from fewbits.solvers.krylov.system import System
from fewbits.solvers.operators.vectors import wide
from fewbits.solvers.precision import KrylovPrecision

BREAKDOWN = 1e-12  # a cosine below which the shadow residual says nothing more


def bicgstab(
    a: Any,
    b: Any,
    *,
    precision: str | KrylovPrecision = "auto",
    rtol: float = 1e-10,
    delta: float | None = 0.1,
    maxiter: int | None = None,
    M: Any = None,
    x0: Any = None,
    callback: Callable[[Any], None] | None = None,
    watch: Watcher | None = None,
) -> KrylovResult:
    """Solve A x = b for a square A; two products in each iteration.

    Args, result and errors: :func:`fewbits.solvers.cg`, without the conditions on A and M.
    """
    check_delta(delta)
    system = System(a, b, x0=x0, M=M)

    def attempt(problem: Problem, one: KrylovPrecision) -> None:
        _iterate(problem, Space(problem.a, one, problem.preconditioner), delta)

    return system.solve(
        "bicgstab", precision, attempt, rtol=rtol, maxiter=maxiter, callback=callback, watch=watch
    )


def _iterate(problem: Problem, space: Space, delta: float | None) -> None:
    dot, norm, zero = problem.a.dot, problem.a.norm, torch.zeros_like(problem.y)
    trigger = Drop(delta or 0.0)
    r = space.taken(problem.add(zero))
    trigger.restart(problem.claimed, 0.0)
    shadow, p, x = r, r, zero
    rho = dot(shadow, r)
    while problem.goes_on:
        towards = space.preconditioned(p)
        v = space.stored(space.apply(towards))
        across = dot(shadow, v)
        if not abs(across) > BREAKDOWN * norm(shadow) * norm(v):
            # The shadow residual says nothing more: begin again from the true one.
            problem.updates += 1
            r = space.taken(problem.add(x))
            x = zero
            image = space.stored(space.apply(space.preconditioned(r)))
            if not abs(dot(r, image)) > BREAKDOWN * norm(r) * norm(image):
                return
            shadow, p, rho = r, r, dot(r, r)
            problem.note(problem.claimed, lambda: zero)
            continue
        alpha = rho / across
        s = space.stored(r - alpha * v)
        half = space.preconditioned(s)
        t = space.stored(space.apply(half))
        length = dot(t, t).real
        omega = dot(t, s) / length if length > 0 else 0.0
        following = x + alpha * wide(towards) + omega * wide(half)
        r = space.stored(s - omega * t)
        size = norm(r)
        if not math.isfinite(size):
            break
        x = following
        problem.note(size, lambda x=x: x)  # type: ignore[misc]
        if delta is not None and (trigger.fires(size, 0.0) or size <= problem.target):
            problem.updates += 1
            r = space.taken(problem.add(x))
            x = zero
            trigger.restart(problem.claimed, 0.0)
        before, rho = rho, dot(shadow, r)
        if omega == 0 or before == 0:
            shadow, p, rho = r, r, dot(r, r)
            continue
        p = space.stored(r + (rho / before) * (alpha / omega) * (p - omega * v))
    problem.finish(x)
