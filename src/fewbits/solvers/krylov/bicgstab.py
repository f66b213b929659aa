"""BiCGstab whose vectors are stored narrow, with reliable updates.

Van der Vorst, Bi-CGSTAB, SIAM J. Sci. Stat. Comput. 13, 1992; Sleijpen and van der Vorst, Reliable updated
residuals in hybrid Bi-CG methods, 1996; with narrow vectors: Clark et al., Solving Lattice QCD systems of
equations using mixed precision solvers on GPUs, 2010.
"""

from __future__ import annotations

import math
from typing import Any

import torch

from fewbits.solvers.krylov.problem import Problem, Watcher, check_delta
from fewbits.solvers.krylov.reliable import Drop
from fewbits.solvers.krylov.result import KrylovResult
from fewbits.solvers.krylov.space import Preconditioner, Space
from fewbits.solvers.precision import KrylovPrecision

BREAKDOWN = 1e-12  # a cosine below which the shadow residual says nothing more


def bicgstab(
    a: Any,
    b: Any,
    *,
    precision: str | KrylovPrecision = "auto",
    tol: float = 1e-10,
    delta: float | None = 0.1,
    most: int | None = None,
    preconditioner: Preconditioner | None = None,
    watch: Watcher | None = None,
) -> KrylovResult:
    """Solve A x = b for a square A; two products in each iteration.

    Args and errors: :func:`fewbits.solvers.cg`, without the conditions on A.
    """
    problem = Problem(a, b, tol, most, watch)
    check_delta(delta)

    def attempt(one: KrylovPrecision) -> None:
        _iterate(problem, Space(problem.a, one, preconditioner), delta)

    return problem.solve(precision, attempt)


def _iterate(problem: Problem, space: Space, delta: float | None) -> None:
    dot, zero = problem.a.dot, torch.zeros_like(problem.b)
    trigger = Drop(delta or 0.0)
    r = space.taken(problem.add(zero))
    trigger.restart(problem.claimed, 0.0)
    shadow, p, x = r, r, zero.clone()
    rho = dot(shadow, r)
    while problem.goes_on:
        towards = space.preconditioned(p)
        v = space.stored(space.apply(towards))
        across = dot(shadow, v)
        if abs(across) <= BREAKDOWN * math.sqrt(dot(shadow, shadow) * dot(v, v)):
            # The shadow residual says nothing more: begin again from the true one.
            problem.updates += 1
            r = space.taken(problem.add(x))
            x = torch.zeros_like(x)
            if abs(dot(r, space.apply(space.preconditioned(r)))) <= BREAKDOWN * dot(r, r):
                return
            shadow, p, rho = r, r, dot(r, r)
            problem.note(problem.claimed)
            continue
        alpha = rho / across
        s = space.stored(r - alpha * v)
        half = space.preconditioned(s)
        t = space.stored(space.apply(half))
        length = dot(t, t)
        omega = dot(t, s) / length if length > 0 else 0.0
        x = x.add(towards, alpha=alpha).add(half, alpha=omega)
        r = space.stored(s - omega * t)
        size = problem.a.norm(r)
        if not math.isfinite(size):
            return
        problem.note(size)
        if delta is not None and (trigger.fires(size, 0.0) or size <= problem.target):
            problem.updates += 1
            r = space.taken(problem.add(x))
            x = torch.zeros_like(x)
            trigger.restart(problem.claimed, 0.0)
        before, rho = rho, dot(shadow, r)
        if omega == 0 or before == 0:
            shadow, p, rho = r, r, dot(r, r)
            continue
        p = space.stored(r + (rho / before) * (alpha / omega) * (p - omega * v))
    problem.y = problem.y + x
