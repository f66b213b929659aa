"""The Wilson operator of lattice quantum chromodynamics, and its linear systems."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial

import numpy as np
import torch
import torch.distributed as dist
from numpy.typing import NDArray

from fewbits.errors import ArgumentError
from fewbits.solvers.krylov import Deflation
from fewbits.solvers.krylov.stopping import Stopping
from fewbits.solvers.lattice.direct import solve_directly
from fewbits.solvers.lattice.even_odd import Inner, solve_even_sites
from fewbits.solvers.lattice.gauge_field import GaugeField
from fewbits.solvers.lattice.given_fields import read_field
from fewbits.solvers.lattice.links import read_number
from fewbits.solvers.lattice.normal import Normal
from fewbits.solvers.lattice.order import grouped, natural
from fewbits.solvers.lattice.processes import Processes, Sent
from fewbits.solvers.lattice.ritz import RitzVectors
from fewbits.solvers.lattice.square import solve_through_square
from fewbits.solvers.precision import KrylovPrecision
from fewbits.solvers.solution import Solution
from fewbits.typing import NumpyArray, Watch

Array = NDArray[np.complex128]
Reals = NDArray[np.float64]


class Wilson:
    """The Wilson operator M on a lattice; its definition is kernels/reference/lattice/wilson.py.

    M psi(x) = (4 + m) psi(x) - 1/2 sum over mu of (1 - gamma_mu) U_mu(x) psi(x + mu)
    + (1 + gamma_mu) U_mu(x - mu)^+ psi(x - mu), gamma matrices in the chiral basis.

    Args:
        links: (4, T, Z, Y, X, 3, 3) complex128 in SU(3), directions x, y, z, t. An axis of odd size is
            doubled internally, which takes twice the time and memory.
        mass: m, in units of the lattice.
        reconstruct: real numbers stored for each link: 18, 12 (the default if all axes are periodic) or 8
            (Clark et al., Solving Lattice QCD systems of equations using mixed precision solvers on GPUs,
            2010). With 8, links near the identity lose digits.
        boundary: 1 for periodic and -1 for antiperiodic spinors along T, Z, Y and X; time is usually
            antiperiodic. Give links without the sign; with an antiperiodic axis they are stored as 18
            numbers.
        split: processes along T, Z, Y and X, which share the lattice. All of them give all links, of which
            each reads its part and a layer around it (``numpy.load(..., mmap_mode="r")`` leaves the rest on
            disk); ``part`` says which sites are its own. Fields are then those of these sites, and numbers
            refer to all. A split axis has an even number of sites in each process.
        group: a gloo group of torch.distributed with so many processes; None for the default group.

    Attributes:
        part: the sites of this process as slices along T, Z, Y and X: ``psi[wilson.part]`` is its part of a
            whole field.
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
        with self.processes.agreeing(self._announced(links, mass, reconstruct, boundary)):
            self.mass = read_number(mass, "mass")
            field = GaugeField(links, boundary, reconstruct, self.processes)
            self.part, self.shape = field.part, field.shape
            self._copies = field.copies
            blocks = self._blocks(field)
            blocks = None if blocks is None else np.tile(blocks, (*self._copies, 1, 1, 1))
        self.normal = Normal(field.stored(), 4 + self.mass, blocks)

    def _announced(self, links: object, *numbers: object) -> str:
        """Return what must be the same in all processes."""
        return f"{type(self).__name__} of links {getattr(links, 'shape', None)}, {numbers}"

    @property
    def sent(self) -> Sent:
        """The bytes that this process has sent to others."""
        return self.processes.sent

    def _blocks(self, field: GaugeField) -> Array | None:
        """Return what stands in place of 4 + m at each site, (T, Z, Y, X, 2, 6, 6); None for 4 + m itself."""
        del field
        return None

    def apply(self, psi: Array) -> Array:
        """Return M psi, (T, Z, Y, X, 4, 3) complex128, for psi of that shape.

        Raises:
            ArgumentError: another shape.
            DataError: NaN or infinity.
        """
        with self.processes.agreeing("apply"):
            v = self.flat(psi)
        image = self.spinor(self.normal.hermitian(v))
        image[..., 2:, :] *= -1
        return image

    def apply_adjoint(self, psi: Array) -> Array:
        """Return M^+ psi = gamma_5 M gamma_5 psi; shapes and errors as in :meth:`apply`."""
        with self.processes.agreeing("apply_adjoint"):
            v = self._flat_gamma_5(psi)
        return self.spinor(self.normal.hermitian(v))

    def flat(self, psi: Array) -> Reals:
        """Return a spinor field in the order of :class:`Normal`, (n,) float64; errors as in :meth:`apply`."""
        reals = read_field(psi, (*self.shape, 4, 3), "spinor field", "spin, colour")
        return grouped(np.tile(reals.reshape(*self.shape, 24), (*self._copies, 1))).reshape(-1)

    def spinor(self, v: Reals) -> Array:
        """Return the spinor field, (T, Z, Y, X, 4, 3) complex128, of a vector of :class:`Normal`."""
        shape = self.shape
        reals = natural(v.reshape(-1, 24, 16).astype(np.float64, copy=False), self.normal.shape)
        t, z, y, x = shape
        reals = np.ascontiguousarray(reals[:t, :z, :y, :x])
        return reals.view(np.complex128).reshape(*shape, 4, 3)

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
        method: str = "cg",
        deflation: Deflation | RitzVectors | None = None,
        watch: Watch | None = None,
    ) -> Solution[NumpyArray]:
        """Solve M x = b by conjugate gradients on M^+ M x = M^+ b, or by BiCGstab on M.

        Args:
            b: (T, Z, Y, X, 4, 3) complex, the sites of this process.
            x0: initial guess, of b's shape; default zero.
            rtol: tolerance for the relative residual, at least 0 and below 1.
            atol: tolerance for the absolute residual, at least 0. The solver converges when |b - M x| <=
                max(rtol |b|, atol) for the true residual in the 2-norm.
            maxiter: most iterations, in all precisions together; default 10 n for each.
            callback: called with x, of b's shape, after each iteration.
            precision: ``half``, ``quarter``, ``single``, ``double`` or another that :func:`krylov_precision`
                reads; ``auto`` tries half, then double.
            delta: the true residual is computed in float64 whenever the recurrence's residual has fallen by
                this factor; None for no such updates.
            even_odd: solve for the sites whose t + z + y + x is even by the Schur complement of M, which
                takes about half of the applications of M; the others follow from them. Every axis of the
                lattice is then a multiple of 4.
            method: ``cg``, or ``bicgstab`` on M itself: mostly half of the products, but no bound on their
                number. Both take two products in an iteration.
            deflation: :class:`RitzVectors`, which this solve uses and adds to, or a :class:`Deflation` with
                modes of ``normal`` (of ``normal.even_odd_operator()`` with ``even_odd``); for ``cg``.
            watch: called as ``watch(precision, iteration, residual)``, with the residual of the normal
                equations over |M^+ b|.

        Returns:
            x of b's shape with its evidence; ``residual`` and ``converged`` refer to M x = b, ``claimed`` and
            ``history`` to the normal equations, or to M itself with ``bicgstab``; of the Schur complement
            with ``even_odd``.

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
            method,
            *(given is None for given in (x0, callback, deflation)),
        )
        with self.processes.agreeing(f"solve with {options}"):
            if method not in ("cg", "bicgstab"):
                raise ArgumentError(f"method={method!r}; expected cg or bicgstab")
            if method == "bicgstab" and deflation is not None:
                raise ArgumentError("deflation= is for method='cg': low modes of M^+ M are not those of M")
            right = torch.from_numpy(self._flat_gamma_5(b))
            start = None if x0 is None else torch.from_numpy(self.flat(x0))
            stopping = Stopping(rtol, atol, maxiter).of_copies(math.prod(self._copies))
        # M x = b is H x = gamma_5 b, and M^+ M = H^2.
        inner: Inner = (
            partial(solve_directly, precision=precision, delta=delta, watch=watch)
            if method == "bicgstab"
            else partial(
                solve_through_square, precision=precision, delta=delta, deflation=deflation, watch=watch
            )
        )
        solver = partial(solve_even_sites, inner=inner) if even_odd else inner
        solution = solver(
            self.normal,
            right,
            start,
            stopping,
            callback=None if callback is None else lambda x: callback(self.spinor(x.numpy())),
        )
        return solution.with_x(self.spinor(solution.x.numpy()))

    def _flat_gamma_5(self, psi: Array) -> Reals:
        v = self.flat(psi)
        v.reshape(-1, 24, 16)[:, 12:] *= -1
        return v
