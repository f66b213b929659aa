"""The normal equations of a Wilson operator, M^+ M x = M^+ b, as a real symmetric operator."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from numpy.typing import DTypeLike, NDArray

from fewbits.errors import ArgumentError, DataError
from fewbits.formats import Format
from fewbits.kernels.bits.lattice import REALS, SITES, Field, compress_links, decode_links, encode_links
from fewbits.solvers.lattice.blocks import Blocks
from fewbits.solvers.lattice.hops import Hops, even_groups
from fewbits.solvers.lattice.order import Shape, extent_of, grouped
from fewbits.solvers.lattice.packed_vectors import LatticeVectors
from fewbits.solvers.lattice.square_operator import Square
from fewbits.solvers.operators.cg_vectors import CGVectors
from fewbits.solvers.operators.operator import Apply
from fewbits.solvers.precision import KrylovPrecision
from fewbits.tensor import format as read

Array = NDArray[Any]  # reals, or integers of packed links
DTYPES = {"fp64": np.float64, "fp32": np.float32, "quda_half": np.int16, "quda_quarter": np.int8}
SINGULAR = 1e-6  # error of a block times its inverse above which it counts as having none


class Normal(Square):
    """M^+ M = H^2 with H = gamma_5 M, or that of its Schur complement, on the 24 real numbers of each site.

    The numbers lie in the order of the kernels, (groups, 24, 16) flattened: ``Wilson.flat`` and
    ``Wilson.spinor`` convert. If links and vectors have the same format, the vectors are packed in memory;
    see :class:`LatticeVectors`.

    Args:
        links: (4, T, Z, Y, X, 3, 3) complex128, checked.
        diagonal: 4 + mass.
        numbers: real numbers stored for each narrow link: 18, 12 or 8. The exact product uses at least 12.
        blocks: (T, Z, Y, X, 2, 6, 6) complex128, Hermitian, in place of the diagonal; None without a clover
            term.
        even_odd: whether M is its Schur complement on even sites; vectors are then zero on odd ones.
    """

    symmetric = True
    preferred = "half"

    def __init__(
        self,
        links: Array,
        diagonal: float,
        numbers: int,
        blocks: Array | None = None,
        *,
        even_odd: bool = False,
    ) -> None:
        self.shape: Shape = links.shape[1:5]
        self.extent, self.diagonal, self.numbers = extent_of(self.shape), diagonal, numbers
        self.n = REALS * int(np.prod(self.shape))
        self.blocks, self.even_odd = blocks, even_odd
        self._inverse = None if blocks is None or not even_odd else inverse_of(blocks)
        self._matrices = links
        self._kept: dict[tuple[str, int], Array] = {}
        self._kept_blocks: dict[str, tuple[Blocks | None, Blocks | None]] = {}
        self._even: Normal | None = None
        self._exact: Hops | None = None
        self._scratch: Array | None = None

    def links(self, dtype: DTypeLike, numbers: int | None = None) -> Array:
        """Return the links as they are stored, (groups, 4, numbers, 16)."""
        key = np.dtype(dtype).name, self.numbers if numbers is None else numbers
        if key not in self._kept:
            stored = encode_links(compress_links(self._matrices, key[1]), dtype)
            by_site = np.moveaxis(stored, 0, 4).reshape(*self.shape, -1)
            groups = grouped(by_site)
            self._kept[key] = groups.reshape(len(groups), 4, key[1], SITES)
        return self._kept[key]

    def site_blocks(self, dtype: DTypeLike) -> tuple[Blocks | None, Blocks | None]:
        """Return A, on the sites of this operator, and A^-1 on odd ones, packed; None where there is none."""
        key = np.dtype(dtype).name
        if key not in self._kept_blocks and self.blocks is not None:
            even = even_groups(self.extent)
            own = even if self.even_odd else np.ones_like(even)
            inverse = None
            if self._inverse is not None:
                inverse = Blocks.packed(self._inverse, dtype, np.flatnonzero(~even))
            self._kept_blocks[key] = Blocks.packed(self.blocks, dtype, np.flatnonzero(own)), inverse
        return self._kept_blocks.get(key, (None, None))

    def even_odd_operator(self) -> Normal:
        """Return the operator of the Schur complement; it shares the links.

        Raises:
            DataError: a block of the clover term has no inverse.
        """
        if self._even is None:
            self._even = Normal(self._matrices, self.diagonal, self.numbers, self.blocks, even_odd=True)
            self._even._kept = self._kept
        return self._even

    @staticmethod
    def turned(v: torch.Tensor) -> torch.Tensor:
        """Return i v, (..., n)."""
        parts = v.reshape(-1, REALS // 2, 2, SITES)
        return torch.stack([-parts[:, :, 1], parts[:, :, 0]], 2).reshape(v.shape)

    def exact_hops(self) -> Hops:
        """Return H in float64."""
        if self._exact is None:
            # Reconstruction from 8 numbers loses digits near the identity, even in float64.
            links = self.links(np.float64, max(self.numbers, 12))
            self._exact = self._hops(links, self.site_blocks(np.float64))
        return self._exact

    def hermitian(self, v: Array) -> Array:
        """Return H v, (n,) float64."""
        return self._hop(self.exact_hops(), v, np.empty_like(v))

    def exact(self, v: torch.Tensor) -> torch.Tensor:
        """Return M^+ M v."""
        if not bool(v[0]) and not bool(v.any()):  # saves a product: solvers start from zero
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
        names = [name for name in DTYPES if name.startswith("quda") and read(name) == format]
        if format is not None and not names:
            raise ArgumentError(f"links cannot be held in {format}; expected fp32, quda_half or quda_quarter")
        if not names:
            return self._hops(self.links(np.float32), self.site_blocks(np.float32))
        dtype = DTYPES[names[0]]
        blocks, inverse = (b and b.widened() for b in self.site_blocks(dtype))
        return self._hops(decode_links(self.links(dtype)).astype(np.float32), (blocks, inverse))

    def cg_vectors(self, precision: KrylovPrecision) -> CGVectors | None:
        """Return packed vectors if links and vectors have the same format, else None."""
        if precision.matrix != precision.vectors or precision.matrix not in DTYPES:
            return None
        dtype = DTYPES[precision.matrix]
        return LatticeVectors(self._hops(self.links(dtype), self.site_blocks(dtype)))

    def _hops(self, links: Array, blocks: tuple[Blocks | None, Blocks | None]) -> Hops:
        return Hops(links, self.extent, self.diagonal, self.even_odd, *blocks)

    def _squared(self, hops: Hops, v: Array) -> Array:
        if self._scratch is None or self._scratch.dtype != v.dtype:
            self._scratch = np.empty_like(v)
        return self._hop(hops, self._hop(hops, v, self._scratch), np.empty_like(v))

    def _hop(self, hops: Hops, v: Array, out: Array) -> Array:
        shape = (len(hops.links), REALS, SITES)
        if self.even_odd:
            out[:] = 0
        hops.apply(Field(v.reshape(shape)), Field(out.reshape(shape)))
        return out


def inverse_of(blocks: Array) -> Array:
    """Return the inverse of each block.

    Raises:
        DataError: a block has none.
    """
    try:
        inverse: Array = np.linalg.inv(blocks)
        off = np.abs(inverse @ blocks - np.eye(6)).max()
    except np.linalg.LinAlgError:
        inverse, off = blocks, np.inf
    if not off < SINGULAR:
        raise DataError(
            "a block of the clover term is singular, and even_odd=True needs its inverse; take another mass"
            " or csw, or even_odd=False"
        )
    return inverse
