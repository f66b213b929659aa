"""Solves H x = b through the Schur complement on even sites; the odd sites follow from them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import torch

from fewbits.errors import ArgumentError
from fewbits.kernels.bits.lattice import REALS, SITES, Field
from fewbits.solvers.krylov.stopping import Stopping
from fewbits.solvers.lattice.hops import even_groups
from fewbits.solvers.lattice.normal import Normal
from fewbits.solvers.lattice.square import solve_through_square
from fewbits.solvers.operators.vectors import exponent_of, times_power
from fewbits.solvers.precision import KrylovPrecision
from fewbits.solvers.solution import Solution
from fewbits.typing import Watch


def solve_even_sites(
    a: Normal,
    b: torch.Tensor,
    x0: torch.Tensor | None,
    stopping: Stopping,
    *,
    precision: str | KrylovPrecision,
    delta: float | None,
    callback: Callable[[torch.Tensor], None] | None,
    watch: Watch | None,
) -> Solution[torch.Tensor]:
    """Return the best x; it converged if |b - H x| <= max(rtol |b|, atol).

    With odd sites that solve their own equations, |b - H x| is what the even ones leave of theirs.

    Args:
        a: the operator H^2 on all sites.
        b: (n,) float64, in the order of the kernels.
        x0: initial guess, like b, of which the even sites are used; None for zero.
        stopping: criterion for |b - H x|; ``maxiter`` bounds the sum of all iterations.
        precision: ``auto``, a name or a :class:`KrylovPrecision`, as in :func:`fewbits.solvers.cg`.
        delta: reduction of the residual between reliable updates, or None.
        callback: called with x after each iteration.
        watch: called with the precision, the iteration and the residual of the even sites' normal equations.

    Raises:
        ArgumentError: an axis of the lattice is no multiple of 4, or its diagonal is zero.
    """
    if any(size % 4 for size in a.shape) or a.diagonal == 0:
        raise ArgumentError(
            f"even_odd=True on a lattice of {a.shape} sites, diagonal {a.diagonal}; expected axes that"
            " are multiples of 4, and a mass other than -4; even_odd=False takes all"
        )
    exponent = exponent_of(a.peak(b))
    right = times_power(b, -exponent)
    size = a.norm(right)
    if size == 0:
        return solve_through_square(
            a, b, x0, stopping, precision=precision, delta=delta, callback=callback, watch=watch
        )
    allowed = stopping.residual(size, exponent)
    shape = (-1, REALS, SITES)
    schur = a.even_odd_operator()
    hops, even = schur.exact_hops(), torch.from_numpy(even_groups(a.extent))[:, None, None]
    source = right.reshape(shape).clone()
    source[:, REALS // 2 :] *= -1  # H = gamma_5 M: what M x equals
    field = Field(source.numpy())

    def whole(x: torch.Tensor) -> torch.Tensor:
        """Return x with the odd sites that follow from the even ones."""
        out = x.reshape(shape).clone()
        hops.odd_sites(Field(x.reshape(shape).numpy()), field, 1 / a.diagonal, Field(out.numpy()))
        return out.reshape(-1)

    reduced = torch.zeros_like(source)
    hops.even_sites(field, field, 1.0, -0.5 / a.diagonal, Field(reduced.numpy()))
    start = None if x0 is None else torch.where(even, times_power(x0, -exponent).reshape(shape), 0.0)
    step = solve_through_square(
        schur,
        reduced.reshape(-1),
        None if start is None else start.reshape(-1),
        Stopping(0.0, allowed, stopping.maxiter),
        precision=precision,
        delta=delta,
        callback=None if callback is None else lambda x: callback(times_power(whole(x), exponent)),
        watch=watch,
    )
    x = whole(step.x)
    left = a.norm(right - torch.from_numpy(a.hermitian(np.ascontiguousarray(x.numpy()))))
    return replace(step, x=times_power(x, exponent), converged=bool(left <= allowed), residual=left / size)
