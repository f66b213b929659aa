"""The normal equations of a Wilson operator, M^+ M x = M^+ b, as a real symmetric operator."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from numpy.typing import DTypeLike, NDArray

from fewbits.errors import DataError
from fewbits.formats import Format
from fewbits.kernels.bits.lattice import REALS, SITES, Field
from fewbits.solvers.lattice.blocks import Blocks
from fewbits.solvers.lattice.domain import Domain
from fewbits.solvers.lattice.hops import Hops
from fewbits.solvers.lattice.order import Shape, natural
from fewbits.solvers.lattice.packed_vectors import LatticeVectors
from fewbits.solvers.lattice.square_operator import Square
from fewbits.solvers.lattice.stored_links import DTYPES, StoredLinks
from fewbits.solvers.operators.cg_vectors import CGVectors
from fewbits.solvers.operators.operator import Apply
from fewbits.solvers.precision import KrylovPrecision

Array = NDArray[Any]
SINGULAR = 1e-6  # error of a block times its inverse above which it counts as having none


class Normal(Square):
    """M^+ M = H^2 with H = gamma_5 M, or that of its Schur complement, on the 24 real numbers of each site.

    The numbers lie in the order of the kernels, (groups, 24, 16) flattened: ``Wilson.flat`` and
    ``Wilson.spinor`` convert. If links and vectors have the same format, the vectors are packed in memory;
    see :class:`LatticeVectors`.

    Args:
        links: those of this process.
        diagonal: 4 + mass.
        blocks: (T, Z, Y, X, 2, 6, 6) complex128, Hermitian, in place of the diagonal; None without a clover
            term.
        even_odd: whether M is its Schur complement on even sites; vectors are then zero on odd ones. The
            blocks of odd sites are then those of A^-1.
    """

    symmetric = True
    preferred = "half"
    reals = REALS

    def __init__(
        self,
        links: StoredLinks,
        diagonal: float,
        blocks: Array | None = None,
        *,
        even_odd: bool = False,
    ) -> None:
        self.links, self.domain, self.diagonal = links, links.domain, diagonal
        self.shape: Shape = self.domain.shape
        self.n = REALS * int(np.prod(self.shape))
        self.unknowns = self.n * self.domain.processes.size
        self.blocks, self.even_odd = blocks, even_odd
        self._kept_blocks: dict[str, Blocks] = {}
        self._even: Normal | None = None
        self._exact: Hops | None = None
        self._scratch: Array | None = None

    def site_blocks(self, dtype: DTypeLike) -> Blocks | None:
        """Return the blocks, packed; None without a clover term."""
        if self.blocks is None:
            return None
        key = np.dtype(dtype).name
        if key not in self._kept_blocks:
            self._kept_blocks[key] = Blocks.packed(self.blocks, dtype)
        return self._kept_blocks[key]

    def even_odd_operator(self) -> Normal:
        """Return the operator of the Schur complement; it shares the links.

        Raises:
            DataError: a block of the clover term has no inverse.
        """
        if self._even is None:
            blocks = self.blocks
            with self.domain.processes.agreeing("blocks on even sites"):
                blocks = blocks if blocks is None else with_inverse(blocks, self.domain)
            self._even = Normal(self.links, self.diagonal, blocks, even_odd=True)
        return self._even

    @staticmethod
    def turned(v: torch.Tensor) -> torch.Tensor:
        """Return i v, (..., n)."""
        parts = v.reshape(-1, REALS // 2, 2, SITES)
        return torch.stack([-parts[:, :, 1], parts[:, :, 0]], 2).reshape(v.shape)

    def exact_hops(self) -> Hops:
        """Return H in float64."""
        if self._exact is None:
            self._exact = self._hops(self.links.exact(), self.site_blocks(np.float64))
        return self._exact

    def hermitian(self, v: Array) -> Array:
        """Return H v, (n,) float64."""
        return self._hop(self.exact_hops(), v, np.empty_like(v))

    def exact(self, v: torch.Tensor) -> torch.Tensor:
        """Return M^+ M v."""
        if not self.peak(v[:1]) and not self.peak(v):  # saves a product: solvers start from zero
            return torch.zeros_like(v)
        return torch.from_numpy(self._squared(self.exact_hops(), v.numpy()))

    def rounded(self, format: Format | None) -> Apply:
        """Return the cheap product; errors as in :meth:`rounded_hermitian`."""
        hops = self._rounded_hops(format)
        return lambda v: torch.from_numpy(self._squared(hops, v.numpy()))

    def rounded_hermitian(self, format: Format | None) -> Callable[[Array], Array]:
        """Return the cheap H v, of and in float32.

        Raises:
            ArgumentError: a format other than ``quda_half`` and ``quda_quarter``.
        """
        hops = self._rounded_hops(format)
        return lambda v: self._hop(hops, v, np.empty_like(v))

    def _rounded_hops(self, format: Format | None) -> Hops:
        """Return H in float32 arithmetic, on values as the format keeps them."""
        links, dtype = self.links.rounded(format)
        blocks = self.site_blocks(dtype)
        return self._hops(links, blocks and blocks.widened())

    def cg_vectors(self, precision: KrylovPrecision) -> CGVectors | None:
        """Return packed vectors if links and vectors have the same format, else None."""
        if precision.matrix != precision.vectors or precision.matrix not in DTYPES:
            return None
        dtype = DTYPES[precision.matrix]
        return LatticeVectors(self._hops(self.links.stored(dtype), self.site_blocks(dtype)))

    def _hops(self, links: Array, blocks: Blocks | None) -> Hops:
        return Hops(links, self.domain, self.even_odd, self.diagonal, blocks)

    def _squared(self, hops: Hops, v: Array) -> Array:
        if self._scratch is None or self._scratch.dtype != v.dtype:
            self._scratch = np.empty_like(v)
        return self._hop(hops, self._hop(hops, v, self._scratch), np.empty_like(v))

    def _hop(self, hops: Hops, v: Array, out: Array) -> Array:
        shape = (-1, REALS, SITES)
        if self.even_odd:
            out[:] = 0
        hops.apply(Field(v.reshape(shape)), Field(out.reshape(shape)))
        return out


def with_inverse(blocks: Array, domain: Domain) -> Array:
    """Return the blocks on even sites, and the inverse of each one on odd sites.

    Raises:
        DataError: a block has none.
    """
    even = natural(np.repeat(domain.even, SITES).reshape(-1, 1, SITES), domain.shape)[..., 0]
    odd = blocks[~even]
    try:
        inverse = np.linalg.inv(odd)
        off = np.abs(inverse @ odd - np.eye(6)).max()
    except np.linalg.LinAlgError:
        inverse, off = odd, np.inf
    if not off < SINGULAR:
        raise DataError(
            "a block of the clover term is singular, and even_odd=True needs its inverse; take another mass"
            " or csw, or even_odd=False"
        )
    both = blocks.copy()
    both[~even] = inverse
    return both
