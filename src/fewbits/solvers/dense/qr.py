"""Householder QR of tall matrices with narrow trailing updates, and solutions from its factors."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch

from fewbits.solvers.dense.factors import Factors, doubled, inverse_power
from fewbits.solvers.dense.rounded_products import rounded_product

_PANEL = 128  # widest block of columns that LAPACK factorizes without recursion
_POWERS = 4  # steps of the power method
_LEADING = 800  # number of leading columns whose pivots are taken as a sample


@dataclass(frozen=True)
class Orthogonal:
    """A C = Q R with the powers of two C that bring the columns to about one.

    Attributes:
        packed: (m, n), R on and above the diagonal, reflectors below it, as LAPACK's GEQRF leaves them.
        tau: (n,), the factors of the reflectors.
        columns: C, (n,) float64.
    """

    packed: torch.Tensor
    tau: torch.Tensor
    columns: torch.Tensor

    @property
    def pivots(self) -> torch.Tensor:
        """The diagonal of R, (n,)."""
        return self.packed.diagonal()

    def norms(self) -> tuple[float, float]:
        """Return lower bounds of the 2-norms of R and of its inverse, by a few steps of the power method.

        The pivots of a singular R may all be about one (Kahan, Numerical Linear Algebra, 1966).
        """
        upper = doubled(self.packed[: self.packed.shape[1]].triu())
        start = torch.randn(len(upper), 1, generator=torch.Generator().manual_seed(0)).to(upper)

        def norm(
            product: Callable[[torch.Tensor], torch.Tensor], adjoint: Callable[[torch.Tensor], torch.Tensor]
        ) -> float:
            v, size = start, 0.0
            for _ in range(_POWERS):
                v = product(v / torch.linalg.vector_norm(v))
                size = max(size, float(torch.linalg.vector_norm(v)))
                v = adjoint(v)
            return size

        solve = torch.linalg.solve_triangular
        return (
            norm(lambda v: upper @ v, lambda v: upper.mH @ v),
            norm(lambda v: solve(upper, v, upper=True), lambda v: solve(upper.mH, v, upper=False)),
        )

    def solve(self, f: torch.Tensor, g: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Return s, (m, k), and z, (n, k), with s + A C z = f and (A C)^H s = g.

        Bjorck, Iterative Refinement of Linear Least Squares Solutions I, 1967: f is (m, k), g (n, k).
        """
        n = self.packed.shape[1]
        size = torch.maximum(f.abs().amax(0), g.abs().amax(0)).clamp(min=torch.finfo(torch.float64).tiny)
        f_low, g_low = ((v / size).to(self.packed.dtype) for v in (f, g))
        upper = self.packed[:n]
        h = torch.linalg.solve_triangular(upper.triu().mH, g_low, upper=False)
        d = torch.ormqr(self.packed, self.tau, f_low, transpose=True)
        z = torch.linalg.solve_triangular(upper, d[:n] - h, upper=True)
        s = torch.ormqr(self.packed, self.tau, torch.cat([h, d[n:]]))
        return s.to(f.dtype) * size, z.to(f.dtype) * size


def factorize_double(a: torch.Tensor) -> Factors:
    """Factorize (n, n) float64 or complex128 with LAPACK's GEQRF: twice the work of LU, no pivot growth."""
    packed, tau = torch.geqrf(a)
    upper = packed.triu()

    def substitute(b: torch.Tensor) -> torch.Tensor:
        x: torch.Tensor = torch.linalg.solve_triangular(
            upper, torch.ormqr(packed, tau, b, transpose=True), upper=True
        )
        return x

    def transposed(b: torch.Tensor) -> torch.Tensor:
        return torch.ormqr(packed, tau, torch.linalg.solve_triangular(upper.mH, b, upper=False))

    return Factors(substitute, transposed, packed.diagonal())


def column_scales(a: torch.Tensor) -> torch.Tensor:
    """Return the powers of two, (n,) float64, that bring the largest entry of each column to about one."""
    return inverse_power(a.abs().amax(0))


def leading_pivots(low: torch.Tensor) -> torch.Tensor:
    """Return the pivots of the first columns, (m, n), for about a tenth of the arithmetic."""
    packed, _ = torch.geqrf(low[:, : min(low.shape[1] // 6, _LEADING)])
    return packed.diagonal()


def factorize(scaled: torch.Tensor, factor: str, columns: torch.Tensor) -> Orthogonal:
    """Factorize A C, (m, n), m >= n; trailing updates in ``factor``; fp64 and fp32 use LAPACK throughout."""
    if factor in ("fp64", "fp32"):
        return Orthogonal(*torch.geqrf(scaled), columns)
    packed = scaled.clone(memory_format=torch.contiguous_format)
    return Orthogonal(packed, _blocked(packed, rounded_product(factor)), columns)


def _blocked(a: torch.Tensor, multiply: Callable[[torch.Tensor, torch.Tensor], torch.Tensor]) -> torch.Tensor:
    """Factorize a (m, n) in place, and return the factors of the reflectors."""
    taus = []
    for start in range(0, a.shape[1], _PANEL):
        panel, rest = a[start:, start : start + _PANEL], a[start:, start + _PANEL :]
        packed, tau = torch.geqrf(panel)
        panel.copy_(packed)
        taus.append(tau)
        if rest.shape[1]:
            v = packed.tril(-1)
            v.diagonal().fill_(1)
            inner = multiply(v.mH.contiguous(), rest.contiguous())
            rest -= multiply(v.contiguous(), _compact(v, tau).mH @ inner)
    return torch.cat(taus)


def _compact(v: torch.Tensor, tau: torch.Tensor) -> torch.Tensor:
    """Return T of I - V T V^H, the inverse of striu(V^H V) + diag(1 / tau).

    Puglisi, Modification of the Householder Method Based on the Compact WY Representation, 1992.
    """
    used = tau != 0  # a factor of zero means no reflection
    inverse = (v.mH @ v).triu(1) * (used[:, None] & used)
    inverse.diagonal().copy_(torch.where(used, 1 / tau, 1.0))
    compact: torch.Tensor = torch.linalg.solve_triangular(inverse, torch.diag(used.to(v.dtype)), upper=True)
    return compact
