"""A dense matrix equilibrated by powers of two, and the residuals and backward errors of its solutions."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch

from fewbits.kernels.arrays import dense as kernels
from fewbits.kernels.portable.dense import residuals as portable
from fewbits.solvers.dense.factors import scaled_to, unwritten

_MILD = 2.0**4  # ratio of the largest entries of rows or columns up to which scaling changes nothing
_MODERATE = 2.0**60  # magnitudes up to this, and products of two, are within the range of float32
_LARGE = 400  # exponent that right-hand sides may have; sums of squares of solutions stay in range
_STRIPE = 128  # rows copied at once if they are not contiguous
_RELATIVELY_ZERO = 1000 * 2.0**-53  # times n: share of a row's largest possible value that counts as 0
_NOTHING = -(2**20)  # stands for the exponent of zero
_REACH = 100  # of the exponents of a matrix: with right-hand sides of 2^400 all that counts is in range


Powers = tuple[torch.Tensor, torch.Tensor]  # of two


@dataclass(frozen=True)
class Extents:
    """The magnitudes in a matrix, |re| + |im| where it is complex.

    Attributes:
        rows: (n,) float64, the largest of each row.
        sums: (n,), the sum of each row; not finite if the row holds NaN or infinity, or overflows.
        columns: (n,), the largest of each column.
        single: (m, n), the matrix in float32; None if that was not requested.
    """

    rows: torch.Tensor
    sums: torch.Tensor
    columns: torch.Tensor
    single: torch.Tensor | None = None

    @property
    def mild(self) -> bool:
        """Whether all rows and columns have about the same, moderate magnitude."""
        both = torch.cat([self.rows, self.columns])
        alike = all(float(sizes.max()) <= _MILD * float(sizes.min()) for sizes in (self.rows, self.columns))
        return alike and float(both.max()) < _MODERATE and float(both.min()) > 1 / _MODERATE


@dataclass(frozen=True)
class State:
    """A solution, (n, k), with its residual.

    Attributes:
        x: (n, k).
        residual: b - A x, computed in about twice the precision and rounded once.
        errors: (k,), the componentwise backward errors max |r_i| / (|A| |x| + |b|)_i (Oettli and Prager,
            1964).
        regular: (k,), the same, except that rows in which |A| |x| + |b| is only rounding error are divided by
            the largest entry of the row times that of x (Arioli, Demmel and Duff, Solving Sparse Linear
            Systems with Sparse Backward Error, 1989, section 3).
    """

    x: torch.Tensor
    residual: torch.Tensor
    errors: torch.Tensor
    regular: torch.Tensor

    @property
    def error(self) -> float:
        """The largest of the backward errors; nan if something overflowed."""
        return float(self.errors.max())


@dataclass(frozen=True)
class System:
    """R A C, whose rows and columns have about the same magnitude; R and C are powers of two.

    Its componentwise backward errors equal those of A.

    Attributes:
        a: (n, n) float64 or complex128: R A C, or A itself if nothing had to be scaled or with ``powers``.
        sums: (n,) float64, of the magnitudes of the rows of R A C.
        largest: (n,), the largest magnitude in each row of R A C.
        rows: (n,) int64, the exponents of R; None if nothing was scaled.
        columns: (n,) int64, those of C.
        own_norm: the infinity norm of A divided by 2^top.
        top: the exponent of the largest entry of A if A was scaled, else 0.
        powers: (n,) and (n,) float64, the diagonals of R and C, where ``a`` is A: a copy of it would take as
            long to write as a tenth of a factorization. Vectors times powers of two are exact.
    """

    a: torch.Tensor
    sums: torch.Tensor
    largest: torch.Tensor
    rows: torch.Tensor | None = None
    columns: torch.Tensor | None = None
    own_norm: float = math.nan
    top: int = 0
    powers: Powers | None = None

    @property
    def norm(self) -> float:
        """The infinity norm of R A C."""
        return float(self.sums.max())

    def matrix(self) -> torch.Tensor:
        """Return R A C; new memory with ``powers``, else ``a``."""
        return self.a if self.powers is None else scaled_to(self.a.dtype, self.a, *self.powers)

    def matvec(self, x: torch.Tensor) -> torch.Tensor:
        """Return R A C x, (n, k)."""
        if self.powers is None:
            return _matvec(self.a, x)
        left, right = (power[:, None] for power in self.powers)
        return left * _matvec(self.a, right * x)

    def residuals(self, x: torch.Tensor, b: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Return b - R A C x, (n, k), in about twice the precision and rounded once, and |R A C| |x| + |b|.

        Magnitudes of complex numbers are |re| + |im|, as in LAPACK.
        """
        if self.powers is None:
            return residuals(self.a, x, b)
        left, right = (power[:, None] for power in self.powers)
        r, sizes = residuals(self.a, right * x, b / left)
        return left * r, left * sizes

    def entering(self, b: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Return this system's right-hand sides, (n, k), in a safe range, and the exponents taken out, (k,).

        Large ones are scaled down no further than necessary: small entries beside them would become zero.
        """
        exponents = exponents_of(b)
        if self.rows is not None:
            exponents = exponents + self.rows[:, None]
        top = exponents.amax(0)
        small = (top <= _NOTHING // 2) | (self.rows is None) & (top > -_LARGE)
        top = torch.where(top > 0, (top - _LARGE).clamp(min=0), torch.where(small, 0, top))
        if self.rows is None and not bool(top.any()):
            return b, top
        rows = 0 if self.rows is None else self.rows[:, None]
        return times_power(b, rows - top), top

    def leaving(self, y: torch.Tensor, top: torch.Tensor) -> torch.Tensor:
        """Return the solution of A x = b, given the solution y of this system."""
        if self.columns is None and not bool(top.any()):
            return y
        columns = 0 if self.columns is None else self.columns[:, None]
        return times_power(y, columns + top)

    def lost(self, y: torch.Tensor, x: torch.Tensor, top: torch.Tensor) -> torch.Tensor:
        """Return what underflow took of y, in its units, when it became the solution x of A x = b."""
        columns = 0 if self.columns is None else self.columns[:, None]
        return y - times_power(x, -(columns + top).expand(y.shape))

    def near_one(self, y: torch.Tensor) -> torch.Tensor:
        """Return the exponents, (n, k), that scale y to the unknowns of A, the largest being about one."""
        none = y.new_zeros(len(y), 1, dtype=torch.int64)
        columns = none if self.columns is None else self.columns[:, None]
        top = (exponents_of(y) + columns).amax(0)
        return columns - torch.where(top <= _NOTHING // 2, 0, top)

    def normwise(self, state: State, b: torch.Tensor) -> torch.Tensor:
        """Return max |b - A x| / (|A| max |x| + max |b|), (k,), in A's own units.

        Rigal and Gaches, 1967, infinity norms.
        """
        units = self.near_one(state.x)
        x = times_power(magnitudes(state.x), units).amax(0)
        rows = b.new_zeros(len(b), dtype=torch.int64) if self.rows is None else self.rows
        top = (units - (0 if self.columns is None else self.columns[:, None])).amax(0)
        r, right = (times_power(magnitudes(v), top - self.top - rows[:, None]) for v in (state.residual, b))
        sizes, scales = r.amax(0), self.own_norm * x + right.amax(0)
        return torch.where(sizes == 0, 0.0, sizes / scales)

    def relative_residuals(
        self, state: State, b: torch.Tensor, top: torch.Tensor, *, together: int
    ) -> torch.Tensor:
        """Return |b - A x| / |b|, 2-norms, in A's own units.

        Args:
            state: a solution.
            b: (n, k) of this system.
            top: (k,), the exponents taken out of its columns, which may differ between the parts of one.
            together: number of columns; if b has twice as many, they are real parts, then imaginary parts.
        """
        units = top - (0 if self.rows is None else self.rows[:, None])

        def norms(v: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
            """Return the norms of columns in A's units as numbers and exponents: squares stay in range."""
            level = (exponents_of(v) + units).amax(0).reshape(-1, together).amax(0)
            level = torch.where(level <= _NOTHING // 2, 0, level)
            parts = torch.linalg.vector_norm(
                times_power(v, units - level.repeat(v.shape[1] // together)), dim=0
            )
            return torch.linalg.vector_norm(parts.reshape(-1, together), dim=0), level

        (r, of_r), (right, of_b) = norms(state.residual), norms(b)
        return torch.where(r == 0, 0.0, times_power(r / right, of_r - of_b))

    def state(self, x: torch.Tensor, b: torch.Tensor) -> State:
        """Return x with its residual and backward errors for a x = b."""
        r, sizes = self.residuals(x, b)
        left = magnitudes(r)
        row_bounds = self.largest[:, None] * magnitudes(x).amax(0)
        beside = torch.where(sizes < _RELATIVELY_ZERO * len(x) * row_bounds, row_bounds, 0.0)
        return State(x, r, *(torch.where(left == 0, 0.0, left / s).amax(0) for s in (sizes, sizes + beside)))

    def adjoint(self) -> System:
        """Return the system of A^H."""
        powers = None if self.powers is None else self.powers[::-1]
        sizes = extents(self.a.mH, powers=powers)
        return System(self.a.mH, sizes.sums, sizes.rows, self.columns, self.rows, powers=powers)


def general(a: torch.Tensor, sizes: Extents) -> tuple[System, torch.Tensor | None]:
    """Equilibrate (n, n) so that the largest entry of every row and column is in [0.5, 1).

    Scaling by powers of two is exact, so the scaled system is equivalent; only its factors differ.

    Returns:
        The system, and R A C in float32 in the memory of ``sizes.single``, if there is any and it was cheap.
    """
    if sizes.mild:
        return System(a, sizes.sums, sizes.rows, own_norm=float(sizes.sums.max())), sizes.single
    if _within_reach(a, sizes):
        rows = _opposite(exponents_of(sizes.rows))
        largest = extents(a, powers=(_power(rows), torch.ones_like(sizes.columns))).columns
        return _scaled(a, rows, _opposite(exponents_of(largest)), sizes)
    rows = a.new_empty(len(a), dtype=torch.int64)
    columns = torch.full((a.shape[1],), _NOTHING, device=a.device)
    for part, stripe in _stripes(a):
        exponents = exponents_of(stripe)
        rows[part] = _opposite(exponents.amax(1))
        columns = torch.maximum(columns, (exponents + rows[part, None]).amax(0))
    return _scaled(a, rows, _opposite(columns), sizes)


def definite(a: torch.Tensor, sizes: Extents) -> tuple[System, torch.Tensor | None]:
    """Equilibrate a positive definite matrix symmetrically so that its diagonal is in [0.5, 2).

    Returns the same as :func:`general`.
    """
    if sizes.mild:
        return System(a, sizes.sums, sizes.rows, own_norm=float(sizes.sums.max())), sizes.single
    exponents = exponents_of(a.diagonal())
    half = torch.where(exponents <= _NOTHING, 0, -torch.div(exponents, 2, rounding_mode="floor"))
    return _scaled(a, half, half, sizes)


def _opposite(exponents: torch.Tensor) -> torch.Tensor:
    return torch.where(exponents <= _NOTHING // 2, 0, -exponents)


def _within_reach(a: torch.Tensor, sizes: Extents) -> bool:
    """Return whether A is real, on the CPU, and moderate enough that R and C may stay apart from it."""
    if a.is_complex() or a.device.type != "cpu":
        return False
    exponents = exponents_of(torch.cat([sizes.rows, sizes.columns]))
    there = exponents[exponents > _NOTHING // 2].abs()
    return len(there) > 0 and int(there.max()) <= _REACH


def _power(exponents: torch.Tensor) -> torch.Tensor:
    return torch.ldexp(torch.ones(len(exponents), dtype=torch.float64), exponents)


def _scaled(
    a: torch.Tensor, rows: torch.Tensor, columns: torch.Tensor, sizes: Extents
) -> tuple[System, torch.Tensor | None]:
    top = max(int(exponents_of(sizes.rows).max()), _NOTHING // 2)
    if _within_reach(a, sizes):
        powers = _power(rows), _power(columns)
        scaled = extents(a, into=sizes.single, powers=powers)
        own = float(sizes.sums.max()) * 2.0**-top
        return System(a, scaled.sums, scaled.rows, rows, columns, own, top, powers), scaled.single
    scaled_a = unwritten(tuple(a.shape), a.dtype, a.device)
    sums = []
    for part, stripe in _stripes(a):
        scaled_a[part] = times_power(stripe, rows[part, None] + columns)
        sums.append(magnitudes(times_power(stripe, torch.full((1,), -top, device=a.device))).sum(1))
    own = float(torch.cat(sums).max())
    scaled = extents(scaled_a)
    return System(scaled_a, scaled.sums, scaled.rows, rows, columns, own, top), None


def _stripes(a: torch.Tensor) -> Iterator[tuple[slice, torch.Tensor]]:
    """Yield slices of the rows of (n, m) with the rows, contiguous in memory."""
    for start in range(0, len(a), _STRIPE):
        part = slice(start, start + _STRIPE)
        yield part, a[part].resolve_conj().contiguous()


def _lines(a: torch.Tensor) -> Iterator[tuple[slice, np.ndarray[tuple[int, ...], np.dtype[np.float64]]]]:
    """Yield (rows, 2 n or n) of real numbers as the kernels read them, all at once if they are contiguous."""
    readable = a.stride(1) == 1 and not a.is_conj() and (not a.is_complex() or a.is_contiguous())
    for part, stripe in [(slice(None), a)] if readable else _stripes(a):
        yield part, (torch.view_as_real(stripe).flatten(1) if a.is_complex() else stripe).numpy()


def extents(
    a: torch.Tensor,
    *,
    single: bool = False,
    into: torch.Tensor | None = None,
    powers: Powers | None = None,
) -> Extents:
    """Return the magnitudes in (m, n) float64 or complex128 in one pass.

    Args:
        a: the matrix A.
        single: whether to add a float32 copy.
        into: memory for that copy, (m, n).
        powers: the diagonals of R and C, (m,) and (n,); all is then of R A C, A real and on the CPU.
    """
    m, n = a.shape
    low = unwritten((m, n), torch.float32, a.device) if single and not a.is_complex() else into
    if a.device.type != "cpu":
        pairs = torch.view_as_real(a.resolve_conj()).flatten(1) if a.is_complex() else a
        there = portable.extents(pairs)
        return Extents(
            *there[:2], there[2].reshape(n, 1 + a.is_complex()).amax(1), None if low is None else low.copy_(a)
        )
    rows, sums = torch.empty(m, dtype=torch.float64), torch.empty(m, dtype=torch.float64)
    columns = torch.zeros(n * (1 + a.is_complex()), dtype=torch.float64)
    for part, lines in _lines(a):
        taken = None if low is None else low[part].numpy()
        scales = None if powers is None else (powers[0][part].numpy(), powers[1].numpy())
        *along, across = map(torch.from_numpy, kernels.extents(lines, taken, scales))
        rows[part], sums[part] = along
        columns = torch.maximum(columns, across)
    return Extents(rows, sums, columns.reshape(n, 1 + a.is_complex()).amax(1), low)


def residuals(a: torch.Tensor, x: torch.Tensor, b: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return b - A x, (m, k), as :meth:`System.residuals` does for R A C, and |A| |x| + |b|."""
    k = b.shape[1]
    if a.is_complex():
        x, b = x.to(a.dtype).mT.resolve_conj(), b.to(a.dtype).mT.resolve_conj()
        # Re(a x) is a real product with conj(x), Im(a x) one with i conj(x).
        pairs = torch.view_as_real(torch.cat([x.conj(), 1j * x.conj()]).resolve_conj()).flatten(1)
        sides = torch.cat([b.real, b.imag])
    else:
        pairs, sides = x.mT, b.mT
    r, sizes = _real_residuals(a, pairs.contiguous(), sides.contiguous())
    if a.is_complex():
        return torch.complex(r[:k], r[k:]).mT, (sizes[:k] + sizes[k:]).mT
    return r.mT, sizes.mT


def _real_residuals(
    a: torch.Tensor, right: torch.Tensor, left: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return residuals, (k, m), and sizes, of the rows of ``a`` as real numbers."""
    if a.device.type != "cpu":
        lines = torch.view_as_real(a.resolve_conj()).flatten(1) if a.is_complex() else a
        return portable.residuals(lines, right, left)
    r, sizes = torch.empty(left.shape, dtype=torch.float64), torch.empty(left.shape, dtype=torch.float64)
    for part, rows in _lines(a):
        columns = kernels.residuals(rows, right.numpy(), left[:, part].contiguous().numpy())
        r[:, part], sizes[:, part] = map(torch.from_numpy, columns)
    return r, sizes


def _matvec(a: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    """Return A x, (m, k); a single real column uses the kernel of residuals, which is faster than BLAS."""
    if x.shape[1] > 1 or a.is_complex() or x.is_complex():
        return a @ x
    return -residuals(a, x, x.new_zeros(len(a), 1))[0]


def magnitudes(x: torch.Tensor) -> torch.Tensor:
    """Return |x|, |re| + |im| of complex numbers."""
    return x.real.abs() + x.imag.abs() if x.is_complex() else x.abs()


def exponents_of(x: torch.Tensor) -> torch.Tensor:
    """Return int64 exponents e: 2^-e brings the larger of real and imaginary part to [0.5, 1)."""
    size = torch.view_as_real(x.resolve_conj()).abs().amax(-1) if x.is_complex() else x.abs()
    return torch.where(size > 0, torch.frexp(size).exponent.long(), _NOTHING)


def times_power(x: torch.Tensor, exponents: torch.Tensor) -> torch.Tensor:
    """Return x 2^exponents, exponents broadcast to x; exact except for overflow and underflow."""
    real = torch.view_as_real(x.resolve_conj()) if x.is_complex() else x[..., None]
    if x.device.type != "cpu":
        scaled = _ldexp(real, exponents[..., None])
        return torch.view_as_complex(scaled) if x.is_complex() else scaled[..., 0]
    with np.errstate(over="ignore"):  # the infinity is detected later
        scaled = torch.from_numpy(
            np.ldexp(real.numpy(), exponents.clamp(-5000, 5000)[..., None].int().numpy())
        )
    return torch.view_as_complex(scaled) if x.is_complex() else scaled[..., 0]


def _ldexp(x: torch.Tensor, exponents: torch.Tensor) -> torch.Tensor:
    """Return float64 x 2^exponents in steps whose factors are normal numbers; torch.ldexp has but one."""
    left = exponents.clamp(-5000, 5000)
    for _ in range(5):
        step = left.clamp(-1000, 1000)
        x = x * ((step + 1023) << 52).view(torch.float64)
        left = left - step
    return x
