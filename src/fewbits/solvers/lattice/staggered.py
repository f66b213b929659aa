"""Staggered fermions, and their linear systems."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np
import torch
from numpy.typing import NDArray

from fewbits.errors import ArgumentError, DataError
from fewbits.solvers.krylov import Deflation, cg
from fewbits.solvers.krylov.stopping import Stopping
from fewbits.solvers.lattice.links import check_boundary, check_links, check_number, with_boundary
from fewbits.solvers.lattice.ritz import RitzVectors, begin, gather
from fewbits.solvers.lattice.square import solve_through_square
from fewbits.solvers.lattice.staggered_hops import hopping, parity
from fewbits.solvers.lattice.staggered_normal import StaggeredNormal
from fewbits.solvers.operators.vectors import exponent_of, times_power
from fewbits.solvers.precision import KrylovPrecision
from fewbits.solvers.solution import Solution
from fewbits.typing import NumpyArray, Watch

Array = NDArray[np.complex128]


class Staggered:
    """The staggered operator M = m + D of Kogut and Susskind: one spin, whose place phases of sites take.

    M chi(n) = m chi(n) + 1/2 sum over mu of eta_mu(n) (U_mu(n) chi(n + mu) - U_mu(n - mu)^+ chi(n - mu)),
    with eta = 1, (-1)^x, (-1)^(x + y), (-1)^(x + y + z) for mu = x, y, z, t.

    Args:
        links: (4, T, Z, Y, X, 3, 3) complex128 in SU(3), directions x, y, z, t; every axis has an even size.
            With their phases links are not in SU(3), and are kept as 18 numbers.
        mass: m, in units of the lattice; not zero.
        boundary: as for :class:`Wilson`.

    Raises:
        ArgumentError: a shape, size or number is not one of these, or links are not in SU(3).
        DataError: NaN or infinity.
    """

    def __init__(self, links: Array, *, mass: float, boundary: Sequence[int] = (1, 1, 1, 1)) -> None:
        check_links(links)
        check_boundary(boundary)
        check_number(mass, "mass")
        if mass == 0:
            raise ArgumentError("mass=0; expected another: the even sites decide the odd ones by 1 / mass")
        self.shape = links.shape[1:5]
        if any(size % 2 for size in self.shape):
            raise ArgumentError(
                f"staggered fermions on a lattice of {self.shape} sites; expected even sizes, as sites are"
                " even and odd in turn"
            )
        self.mass = mass
        d = hopping(with_boundary(links, boundary))
        even = np.repeat(parity(self.shape), 3)
        self._even, self._odd = np.flatnonzero(even), np.flatnonzero(~even)
        self.normal = StaggeredNormal(d, mass, np.where(even, 1.0, -1.0))
        self.even_normal = StaggeredNormal(d[self._odd][:, self._even], mass)

    def apply(self, chi: Array) -> Array:
        """Return M chi, (T, Z, Y, X, 3) complex128, for chi of that shape.

        Raises:
            ArgumentError: another shape.
            DataError: NaN or infinity.
        """
        v = self._vector(chi)
        image: Array = self.mass * v + self.normal.b @ v
        return image.reshape(chi.shape)

    def apply_adjoint(self, chi: Array) -> Array:
        """Return M^+ chi = epsilon M epsilon chi; shapes and errors as in :meth:`apply`."""
        v = self._vector(chi)
        image: Array = self.mass * v - self.normal.b @ v
        return image.reshape(chi.shape)

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
            b: (T, Z, Y, X, 3) complex.
            x0: initial guess, of b's shape; default zero.
            rtol: tolerance for the relative residual, at least 0 and below 1.
            atol: tolerance for the absolute residual, as for :meth:`Wilson.solve`.
            maxiter: most iterations; default 10 n.
            callback: called with x, of b's shape, after each iteration.
            precision: as for :meth:`Wilson.solve`. Arithmetic is float32; links have the values of the
                format, and each site of a vector its own norm.
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
            DataError: NaN or infinity.
        """
        stopping = Stopping(rtol, atol, maxiter)
        right = torch.from_numpy(self._vector(b))
        start = None if x0 is None else torch.from_numpy(self._vector(x0))
        seen = None if callback is None else lambda x: callback(x.numpy().reshape(b.shape))
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
        return solution.with_x(solution.x.numpy().reshape(b.shape))

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
            b * torch.from_numpy(self._signs),
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
        """Solve (m^2 + B^+ B) x_e = m b_e + B^+ b_o; then x_o = (b_o - B x_e) / m."""
        normal, even, odd = self.even_normal, self._even, self._odd
        exponent = exponent_of(normal.peak(b))
        right = times_power(b, -exponent)
        size = normal.norm(right)
        allowed = stopping.residual(size, exponent)
        b_odd = right.numpy()[odd]

        def whole(x: torch.Tensor) -> torch.Tensor:
            """Return x on all sites."""
            out = torch.empty_like(right)
            out[even] = x
            out[odd] = torch.from_numpy((b_odd - normal.b @ x.numpy()) / self.mass)
            return out

        operator, modes = begin(normal, deflation)
        reduced = self.mass * right[even] + torch.from_numpy(normal.back @ b_odd)
        step = cg(
            operator,
            reduced,
            None if x0 is None else times_power(x0, -exponent)[even],
            rtol=0.0,
            # What even sites leave of M x = b is what they leave here over m; rounding takes a part of it.
            atol=MARGIN * abs(self.mass) * allowed or stopping.rtol or stopping.atol,
            maxiter=stopping.maxiter,
            callback=None if callback is None else lambda x: callback(times_power(whole(x), exponent)),
            precision=precision,
            delta=delta,
            deflation=modes,
            watch=watch,
        )
        gather(deflation)
        x = whole(step.x)
        left = normal.norm(right - self.mass * x - torch.from_numpy(self.normal.b @ x.numpy()))
        x = times_power(x, exponent)
        return replace(step, x=x, converged=bool(left <= allowed), residual=left / (size or 1.0))

    @property
    def _signs(self) -> NDArray[np.float64]:
        assert self.normal.signs is not None
        return self.normal.signs

    def _vector(self, chi: Array) -> Array:
        """Return a colour field as a vector in natural order, (3 sites,) complex128; always a copy."""
        shape = (*self.shape, 3)
        given: object = chi
        if not isinstance(given, np.ndarray) or given.shape != shape or given.dtype.kind not in "fc":
            name = f"{given.dtype} {given.shape}" if isinstance(given, np.ndarray) else type(given).__name__
            raise ArgumentError(f"a field is {name}; expected complex {shape}, (T, Z, Y, X, colour)")
        if not np.isfinite(chi).all():
            raise DataError("the field holds NaN or infinity; remove them first")
        return chi.astype(np.complex128).reshape(-1)


# Of the tolerance: what is left for the rounding of x on odd sites.
MARGIN = 0.9
