"""Solves H x = b by BiCGstab on M = gamma_5 H itself, without its normal equations."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from fewbits.formats import Format
from fewbits.kernels.bits.lattice import REALS, SITES
from fewbits.solvers.krylov import bicgstab
from fewbits.solvers.krylov.fallback import precisions
from fewbits.solvers.krylov.stopping import Stopping
from fewbits.solvers.lattice.budget import solve_in_turn
from fewbits.solvers.lattice.normal import Normal
from fewbits.solvers.lattice.order import grouped, natural
from fewbits.solvers.operators.operator import Apply, Operator
from fewbits.solvers.operators.vectors import wide
from fewbits.solvers.precision import KrylovPrecision
from fewbits.solvers.solution import Solution
from fewbits.typing import Watch

Array = NDArray[Any]


class Direct(Operator):
    """M on complex vectors in natural order, so that the 24 real numbers of a site share a norm.

    Args:
        normal: M^+ M, on all sites or on the even ones.
    """

    complex = True
    preferred = "half"

    def __init__(self, normal: Normal) -> None:
        self.normal, self.n, self.unknowns = normal, normal.n // 2, normal.unknowns // 2

    def total(self, sums: torch.Tensor) -> torch.Tensor:
        """Return the sum over the processes."""
        return self.normal.total(sums)

    def peak(self, v: torch.Tensor) -> float:
        """Return the largest magnitude in v over all processes."""
        return self.normal.peak(v)

    def dot(self, u: torch.Tensor, v: torch.Tensor) -> float:
        """Return u^H v over all processes, a complex number, summed in float64."""
        (a, b), (c, d) = (torch.view_as_real(wide(w).resolve_conj()).numpy().T for w in (u, v))
        with np.errstate(over="ignore", invalid="ignore"):  # an x0 may be too far away
            sums = [
                self.normal.domain.total(p.reshape(-1, REALS // 2).sum(1))
                for p in (a * c + b * d, a * d - b * c)
            ]
        product: float = torch.tensor(complex(*sums), dtype=torch.complex128).item()
        return product

    def norm(self, v: torch.Tensor) -> float:
        """Return the Euclidean norm over all processes."""
        return math.sqrt(self.dot(v, v).real)

    def exact(self, v: torch.Tensor) -> torch.Tensor:
        """Return M v, (n,) complex128."""
        return self._through(self.normal.hermitian, v)

    def rounded(self, format: Format | None) -> Apply:
        """Return the product with a complex64 vector; formats and errors as for :class:`Normal`."""
        hermitian = self.normal.rounded_hermitian(format)
        return lambda v: self._through(hermitian, v)

    def in_groups(self, v: torch.Tensor) -> torch.Tensor:
        """Return v in the order of the kernels, (2 n,) reals."""
        reals = torch.view_as_real(v.resolve_conj()).numpy()
        return torch.from_numpy(grouped(reals.reshape(*self.normal.shape, REALS)).reshape(-1))

    def in_order(self, v: torch.Tensor) -> torch.Tensor:
        """Return the vector whose :meth:`in_groups` is v."""
        reals = natural(v.numpy().reshape(-1, REALS, SITES), self.normal.shape)
        return torch.view_as_complex(torch.from_numpy(reals.reshape(-1, 2)))

    def _through(self, hermitian: Callable[[Array], Array], v: torch.Tensor) -> torch.Tensor:
        image = hermitian(self.in_groups(v).numpy())
        return self.in_order(torch.from_numpy(gamma_5(image)))


def gamma_5(v: Array) -> Array:
    """Return gamma_5 v in the order of the kernels, in the memory of v."""
    v.reshape(-1, REALS, SITES)[:, REALS // 2 :] *= -1
    return v


def solve_directly(
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
    """Return the best x; it converged if |b - H x| <= max(rtol |b|, atol); each iteration takes two products.

    Arguments are those of :func:`solve_through_square`; ``claimed``, ``history`` and ``watch`` refer to
    H x = b.
    """
    m = Direct(a)
    right = torch.from_numpy(gamma_5(b.numpy().copy()))
    solver = partial(
        bicgstab,
        m,
        m.in_order(right),
        rtol=stopping.rtol,
        atol=stopping.atol,
        callback=None if callback is None else lambda x: callback(m.in_groups(x)),
        delta=delta,
    )
    start = None if x0 is None else m.in_order(x0)
    solution = solve_in_turn(solver, start, precisions(precision, m.preferred), stopping.maxiter, watch)
    return solution.with_x(m.in_groups(solution.x))
