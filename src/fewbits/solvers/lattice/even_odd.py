"""Solves H x = b through the Schur complement on even sites; the odd sites follow from them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Protocol

import numpy as np
import torch

from fewbits.errors import ArgumentError
from fewbits.kernels.bits.lattice import REALS, SITES, Field
from fewbits.solvers.krylov.problem import as_returned
from fewbits.solvers.krylov.stopping import Stopping
from fewbits.solvers.lattice.normal import Normal
from fewbits.solvers.operators.vectors import exponent_of, times_power
from fewbits.solvers.solution import Solution


class Inner(Protocol):
    """A solver of H x = b that has all its options but these."""

    def __call__(
        self,
        a: Normal,
        b: torch.Tensor,
        x0: torch.Tensor | None,
        stopping: Stopping,
        *,
        callback: Callable[[torch.Tensor], None] | None,
    ) -> Solution[torch.Tensor]:
        """Return the best x; it converged if |b - H x| <= max(rtol |b|, atol)."""
        ...


def solve_even_sites(
    a: Normal,
    b: torch.Tensor,
    x0: torch.Tensor | None,
    stopping: Stopping,
    *,
    inner: Inner,
    callback: Callable[[torch.Tensor], None] | None,
) -> Solution[torch.Tensor]:
    """Return the best x; it converged if |b - H x| <= max(rtol |b|, atol).

    With odd sites that solve their own equations, |b - H x| is what the even ones leave of theirs.

    Args:
        a: the operator H^2 on all sites.
        b: (n,) float64, in the order of the kernels.
        x0: initial guess, like b, of which the even sites are used; None for zero.
        stopping: criterion for |b - H x|; ``maxiter`` bounds the sum of all iterations.
        inner: solves a system of the Schur complement, or of H where there is nothing to compute.
        callback: called with x after each iteration.

    Raises:
        ArgumentError: an axis of the lattice is no multiple of 4, or its diagonal is zero.
        DataError: the solution lies beyond the largest float64.
    """
    if any(size % 4 for size in a.shape) or (a.blocks is None and a.diagonal == 0):
        raise ArgumentError(
            f"even_odd=True on a lattice of {a.shape} sites in each process, diagonal {a.diagonal}; expected"
            " axes that are multiples of 4, and a mass other than -4; even_odd=False takes all"
        )
    exponent = exponent_of(a.peak(b))
    right = times_power(b, -exponent)
    size = a.norm(right)
    schur = a.even_odd_operator()
    if size == 0:
        return inner(schur, b, None, stopping, callback=callback)
    allowed = stopping.residual(size, exponent)
    shape = (-1, REALS, SITES)
    hops, even = schur.exact_hops(), torch.from_numpy(a.domain.even)[:, None, None]
    source = right.reshape(shape).clone()
    source[:, REALS // 2 :] *= -1  # H = gamma_5 M: what M x equals
    field = Field(source.numpy())

    def whole(x: torch.Tensor) -> torch.Tensor:
        """Return x with the odd sites that follow from the even ones."""
        out = x.reshape(shape).clone()
        hops.complete(Field(x.reshape(shape).numpy()), field, Field(out.numpy()))
        return out.reshape(-1)

    reduced = torch.zeros_like(source)
    hops.reduce(field, Field(reduced.numpy()))
    start = None if x0 is None else torch.where(even, times_power(x0, -exponent).reshape(shape), 0.0)
    step = inner(
        schur,
        reduced.reshape(-1),
        None if start is None else start.reshape(-1),
        Stopping(0.0, allowed, stopping.maxiter),
        callback=None if callback is None else lambda x: callback(times_power(whole(x), exponent)),
    )
    x = times_power(whole(step.x), exponent)
    judged = np.ascontiguousarray(as_returned(a, x, exponent).numpy())
    left = a.norm(right - torch.from_numpy(a.hermitian(judged)))
    return replace(step, x=x, converged=bool(left <= allowed), residual=left / size)
