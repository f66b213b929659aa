"""The result of a factorization: substitutions that solve with it, and the scales of rows and columns."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

import torch

from fewbits.kernels.arrays import dense

Substitute = Callable[[torch.Tensor], torch.Tensor]


@dataclass(frozen=True)
class Factors:
    """Factors of R A C, ready to solve.

    Attributes:
        substitute: function of (n, k) in the dtype of ``pivots`` that returns (R A C)^-1 times it.
        transposed: the same for (R A C)^H.
        pivots: (n,), the diagonal of the triangular factor.
        widened: both substitutions in float64 or complex128, made when GMRES first needs them: rounding in
            float32 blurs the few directions that decide convergence if A has one tiny singular value.
        rows: R, (n,) float64 powers of two; None if nothing was scaled.
        columns: C, likewise.
    """

    substitute: Substitute
    transposed: Substitute
    pivots: torch.Tensor
    widened: Callable[[], tuple[Substitute, Substitute]] | None = None
    rows: torch.Tensor | None = None
    columns: torch.Tensor | None = None

    @property
    def finite(self) -> bool:
        """Whether nothing overflowed."""
        return bool(torch.isfinite(self.pivots.abs()).all())

    @property
    def zero_pivot(self) -> int | None:
        """The first pivot, counted from one, that is exactly zero."""
        zeros = (self.pivots == 0).nonzero()
        return int(zeros[0]) + 1 if len(zeros) else None

    def wide(self) -> Factors:
        """Return the same factors with substitutions in double precision; they are made once."""
        return self if self.widened is None else self._wide

    @cached_property
    def _wide(self) -> Factors:
        assert self.widened is not None
        return Factors(*self.widened(), doubled(self.pivots), None, self.rows, self.columns)

    def adjoint(self) -> Factors:
        """Return the factors of A^H."""
        widened = self.widened
        swapped = None if widened is None else lambda: widened()[::-1]
        return Factors(self.transposed, self.substitute, self.pivots, swapped, self.columns, self.rows)

    def solve(self, b: torch.Tensor) -> torch.Tensor:
        """Return A^-1 b for b, (n, k), in b's dtype; the substitutions run in the dtype of the factors."""
        y = b if self.rows is None else self.rows[:, None] * b
        if y.dtype == self.pivots.dtype:
            y = self.substitute(y)
        else:
            # Residuals may lie outside the range of float32, so they are scaled to about one first.
            size = y.abs().amax(0).clamp(min=torch.finfo(torch.float64).tiny)
            y = self.substitute((y / size).to(self.pivots.dtype)).to(b.dtype) * size
        return y if self.columns is None else self.columns[:, None] * y


def doubled(x: torch.Tensor) -> torch.Tensor:
    """Return x in float64 or complex128; a copy keeps the memory order of x."""
    dtype = torch.complex128 if x.is_complex() else torch.float64
    if x.dtype == dtype:
        return x
    across = x.ndim == 2 and x.stride(0) == 1
    doubled_x = unwritten(tuple(x.mT.shape if across else x.shape), dtype, x.device)
    return (doubled_x.mT if across else doubled_x).copy_(x)


def unwritten(shape: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    """Return an uninitialized tensor; on the CPU in large pages, which the next one takes over from it.

    Page faults of memory from torch take up to a tenth of the time of a solution.
    """
    if device.type != "cpu":
        return torch.empty(shape, dtype=dtype, device=device)
    return torch.from_numpy(dense.empty(shape, str(dtype).removeprefix("torch.")))


def inverse_power(size: torch.Tensor) -> torch.Tensor:
    """Return the powers of two that bring each of ``size``, float64, into [0.5, 1); 1 for zeros."""
    return torch.where(size > 0, torch.ldexp(torch.ones_like(size), -torch.frexp(size).exponent), 1.0)


def balanced(a: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return powers of two, (n,) and (n,), that bring the largest entry of each row and column to about one.

    Higham, Pranesh and Zounon, Squeezing a Matrix into Half Precision, 2019, algorithm 2.3. Scaling by powers
    of two is exact.
    """
    parts = stretches(a)
    rows = inverse_power(torch.cat([a[part].abs().amax(1) for part in parts]))
    columns = torch.stack([(rows[part, None] * a[part].abs()).amax(0) for part in parts]).amax(0)
    return rows, inverse_power(columns)


# Float16 ends at 65504. Algorithm 2.4 of the same paper scales to a tenth of that, but pivots of random
# matrices grow by n^(2/3) (Trefethen and Schreiber, Average-Case Stability of Gaussian Elimination, 1990).
# This target leaves room for the growth, and 2^-21 of the largest entry is still a normal number.
_HEADROOM = {"fp16": 2.0**7}


def to_single(
    a: torch.Tensor, factor: str, *, scaled: bool
) -> tuple[torch.Tensor, torch.Tensor | None, torch.Tensor | None]:
    """Return R A C in float32 or complex64, with R and C; both are None if not ``scaled``."""
    dtype = torch.complex64 if a.is_complex() else torch.float32
    if not scaled:
        return unwritten(tuple(a.shape), dtype, a.device).copy_(a), None, None
    rows, columns = balanced(a)
    rows = rows * _HEADROOM.get(factor, 1.0)
    return scaled_to(dtype, a, rows, columns), rows, columns


def scaled_to(dtype: torch.dtype, a: torch.Tensor, rows: torch.Tensor, columns: torch.Tensor) -> torch.Tensor:
    """Return R A C, rounded once."""
    low = unwritten(tuple(a.shape), dtype, a.device)
    for part in stretches(a):
        low[part] = rows[part, None] * a[part] * columns
    return low


def stretches(a: torch.Tensor) -> list[slice]:
    """Return slices of the rows of (n, m), a megabyte each, so that temporaries stay in the cache."""
    step = max(1, 2**17 // max(1, a.shape[1]))
    return [slice(start, start + step) for start in range(0, max(1, len(a)), step)]
