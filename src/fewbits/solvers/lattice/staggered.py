"""Staggered fermions, and their linear systems."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial

import numpy as np
import torch
import torch.distributed as dist
from numpy.typing import NDArray

from fewbits.errors import ArgumentError
from fewbits.kernels.bits.lattice import COLOUR_REALS, SITES, Field
from fewbits.solvers.krylov import Deflation, cg
from fewbits.solvers.krylov.fallback import precisions
from fewbits.solvers.krylov.problem import as_returned
from fewbits.solvers.krylov.stopping import LARGEST, Stopping
from fewbits.solvers.lattice.budget import solve_in_turn
from fewbits.solvers.lattice.gauge_field import GaugeField
from fewbits.solvers.lattice.given_fields import read_field
from fewbits.solvers.lattice.hops import EVEN, ODD
from fewbits.solvers.lattice.links import check_shape, read_number
from fewbits.solvers.lattice.order import grouped, natural
from fewbits.solvers.lattice.processes import Processes, Sent
from fewbits.solvers.lattice.ritz import RitzVectors, begin, gather
from fewbits.solvers.lattice.square import solve_through_square
from fewbits.solvers.lattice.staggered_normal import StaggeredNormal
from fewbits.solvers.operators.vectors import exponent_of, times_power
from fewbits.solvers.precision import KrylovPrecision
from fewbits.solvers.solution import Solution
from fewbits.typing import NumpyArray, Watch

Array = NDArray[np.complex128]
Reals = NDArray[np.float64]


class Staggered:
    """The staggered operator M = m + D of Kogut and Susskind: one spin, whose place phases of sites take.

    M chi(n) = m chi(n) + 1/2 sum over mu of eta_mu(n) (U_mu(n) chi(n + mu) - U_mu(n - mu)^+ chi(n - mu)),
    with eta = 1, (-1)^x, (-1)^(x + y), (-1)^(x + y + z) for mu = x, y, z, t.

    Args:
        links: (4, T, Z, Y, X, 3, 3) complex128 in SU(3), directions x, y, z, t; every axis has an even size,
            and one that is no multiple of 4 is doubled internally, which takes twice the time and memory.
        mass: m, in units of the lattice; not zero.
        reconstruct: as for :class:`Wilson`.
        boundary: as for :class:`Wilson`.
        split: as for :class:`Wilson`; a split axis has a multiple of 4 sites in each process.
        group: as for :class:`Wilson`.

    Attributes:
        part: the sites of this process, as for :class:`Wilson`.
        shape: their number along each axis.

    Raises:
        ArgumentError: a shape, size or number is not one of these, links are not in SU(3), the lattice cannot
            be split so, or the group has another number of processes. If one process raises, all do.
        DataError: NaN or infinity.
    """

    def __init__(
        self,
        links: Array,
        *,
        mass: float,
        reconstruct: int | None = None,
        boundary: Sequence[int] = (1, 1, 1, 1),
        split: Sequence[int] = (1, 1, 1, 1),
        group: dist.ProcessGroup | None = None,
    ) -> None:
        self.processes = Processes(split, group)
        given = getattr(links, "shape", None), mass, reconstruct, boundary
        with self.processes.agreeing(f"Staggered of {given}"):
            self.mass = read_number(mass, "mass")
            if self.mass == 0:
                raise ArgumentError(
                    "mass=0; expected another: the even sites decide the odd ones by 1 / mass"
                )
            whole = check_shape(links)
            if any(size % 2 for size in whole):
                raise ArgumentError(
                    f"staggered fermions on a lattice of {whole} sites; expected even sizes, as sites are"
                    " even and odd in turn"
                )
            field = GaugeField(links, boundary, reconstruct, self.processes, multiple=4)
        self.part, self.shape, self._copies = field.part, field.shape, field.copies
        stored = field.stored()
        self.normal = StaggeredNormal(stored, self.mass)
        self.even_normal = StaggeredNormal(stored, self.mass, even_odd=True)

    @property
    def sent(self) -> Sent:
        """The bytes that this process has sent to others."""
        return self.processes.sent

    def apply(self, chi: Array) -> Array:
        """Return M chi, (T, Z, Y, X, 3) complex128, for chi of that shape.

        Raises:
            ArgumentError: another shape.
            DataError: NaN or infinity.
        """
        with self.processes.agreeing("apply"):
            v = self.flat(chi)
        return self.field(self.normal.times(v))

    def apply_adjoint(self, chi: Array) -> Array:
        """Return M^+ chi = epsilon M epsilon chi; shapes and errors as in :meth:`apply`."""
        with self.processes.agreeing("apply_adjoint"):
            v = self._flat_epsilon(chi)
        return self.field(self.normal.hermitian(v))

    def flat(self, chi: Array) -> Reals:
        """Return a colour field in the order of :class:`StaggeredNormal`, (n,) float64.

        Raises:
            ArgumentError: another shape.
            DataError: NaN or infinity.
        """
        reals = read_field(chi, (*self.shape, 3), "field", "colour")
        return grouped(np.tile(reals, (*self._copies, 1))).reshape(-1)

    def field(self, v: Reals) -> Array:
        """Return the colour field, (T, Z, Y, X, 3) complex128, of a vector of :class:`StaggeredNormal`."""
        shape = self.shape
        reals = natural(v.reshape(-1, COLOUR_REALS, SITES), self.normal.domain.shape)
        t, z, y, x = shape
        return np.ascontiguousarray(reals[:t, :z, :y, :x]).view(np.complex128).reshape(*shape, 3)

    def _flat_epsilon(self, chi: Array) -> Reals:
        return (self.normal.signs * self.flat(chi).reshape(-1, COLOUR_REALS, SITES)).reshape(-1)

    def solve(
        self,
        b: Array,
        x0: Array | None = None,
        *,
        rtol: float = 1e-10,
        atol: float = 0.0,
        maxiter: int | None = None,
        callback: Callable[[Array], None] | None = None,
        precision: str | KrylovPrecision = "auto",
        delta: float | None = 0.1,
        even_odd: bool = False,
        deflation: Deflation | RitzVectors | None = None,
        watch: Watch | None = None,
    ) -> Solution[NumpyArray]:
        """Solve M x = b by conjugate gradients on M^+ M x = M^+ b.

        Args:
            b: (T, Z, Y, X, 3) complex, the sites of this process.
            x0: initial guess, of b's shape; default zero.
            rtol: tolerance for the relative residual, at least 0 and below 1.
            atol: tolerance for the absolute residual, as for :meth:`Wilson.solve`.
            maxiter: most iterations, in all precisions together; default 10 n for each.
            callback: called with x, of b's shape, after each iteration.
            precision: as for :meth:`Wilson.solve`.
            delta: the true residual is computed in float64 whenever the recurrence's residual has fallen by
                this factor; None for no such updates.
            even_odd: solve for the even sites alone, at half the cost of an iteration: M^+ M does not mix
                even and odd sites, and the odd ones follow from the even ones.
            deflation: :class:`RitzVectors`, which this solve uses and adds to, or a :class:`Deflation` with
                modes of ``normal`` (of ``even_normal`` with ``even_odd``).
            watch: called as ``watch(precision, iteration, residual)``, with the residual of the normal
                equations over that of zero.

        Returns:
            x of b's shape with its evidence; ``residual`` and ``converged`` refer to M x = b, ``claimed`` and
            ``history`` to the normal equations.

        Raises:
            ArgumentError: another shape, or options out of range.
            DataError: NaN or infinity, or a solution beyond the range of float64.
        """
        options = (
            rtol,
            atol,
            maxiter,
            precision,
            delta,
            even_odd,
            *(given is None for given in (x0, callback, deflation)),
        )
        with self.processes.agreeing(f"solve with {options}"):
            stopping = Stopping(rtol, atol, maxiter).of_copies(math.prod(self._copies))
            right = torch.from_numpy(self.flat(b))
            start = None if x0 is None else torch.from_numpy(self.flat(x0))
        seen = None if callback is None else lambda x: callback(self.field(x.numpy()))
        solver = self._solve_even if even_odd else self._solve_all
        solution = solver(
            right,
            start,
            stopping,
            callback=seen,
            precision=precision,
            delta=delta,
            deflation=deflation,
            watch=watch,
        )
        return solution.with_x(self.field(solution.x.numpy()))

    def _solve_all(
        self,
        b: torch.Tensor,
        x0: torch.Tensor | None,
        stopping: Stopping,
        *,
        callback: Callable[[torch.Tensor], None] | None,
        precision: str | KrylovPrecision,
        delta: float | None,
        deflation: Deflation | RitzVectors | None,
        watch: Watch | None,
    ) -> Solution[torch.Tensor]:
        """Solve M x = b as epsilon M x = epsilon b."""
        return solve_through_square(
            self.normal,
            torch.from_numpy((self.normal.signs * b.numpy().reshape(-1, COLOUR_REALS, SITES)).reshape(-1)),
            x0,
            stopping,
            precision=precision,
            delta=delta,
            deflation=deflation,
            callback=callback,
            watch=watch,
        )

    def _solve_even(
        self,
        b: torch.Tensor,
        x0: torch.Tensor | None,
        stopping: Stopping,
        *,
        callback: Callable[[torch.Tensor], None] | None,
        precision: str | KrylovPrecision,
        delta: float | None,
        deflation: Deflation | RitzVectors | None,
        watch: Watch | None,
    ) -> Solution[torch.Tensor]:
        """Solve (m^2 - D^2) x_e = m b_e - D b_o on even sites; then x_o = (b_o - D x_e) / m."""
        normal, hops, mass = self.even_normal, self.even_normal.exact_hops(), self.mass
        even = torch.from_numpy(normal.domain.even)[:, None, None]
        exponent = exponent_of(normal.peak(b))
        right = times_power(b, -exponent)
        size = normal.norm(right)
        allowed = stopping.residual(size, exponent)
        source = _field(right)

        def whole(x: torch.Tensor) -> torch.Tensor:
            """Return x with the odd sites that follow from the even ones."""
            out = x.clone()
            hops.hop(_field(x), source, _field(out), 1 / mass, 0.5 / mass, ODD)
            return out

        tried = precisions(precision, normal.preferred)
        operator, modes = begin(normal, deflation)
        reduced = torch.zeros_like(right)
        hops.hop(source, source, _field(reduced), mass, 0.5, EVEN)
        start = (
            None
            if x0 is None
            else torch.where(even, times_power(x0, -exponent).view(-1, COLOUR_REALS, SITES), 0.0)
        )
        solver = partial(
            cg,
            operator,
            reduced,
            rtol=0.0,
            # What even sites leave of M x = b is what they leave here over m; rounding takes a part of it.
            atol=min(MARGIN * abs(mass) * allowed, LARGEST) or stopping.rtol or stopping.atol,
            callback=None if callback is None else lambda x: callback(times_power(whole(x), exponent)),
            delta=delta,
            deflation=modes,
        )
        x0 = None if start is None else start.reshape(-1)
        step = solve_in_turn(solver, x0, tried, stopping.maxiter, watch)
        gather(deflation)
        x = times_power(whole(step.x), exponent)
        judged = as_returned(normal, x, exponent)
        left = normal.norm(right - torch.from_numpy(self.normal.times(judged.numpy())))
        return replace(step, x=x, converged=bool(left <= allowed), residual=left / (size or 1.0))


def _field(v: torch.Tensor) -> Field:
    return Field(v.numpy().reshape(-1, COLOUR_REALS, SITES))


# Of the tolerance: what is left for the rounding of x on odd sites.
MARGIN = 0.9
