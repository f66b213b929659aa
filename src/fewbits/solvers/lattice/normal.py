"""The normal equations of the Wilson operator, M^+ M x = M^+ b, as a real symmetric operator."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import DTypeLike, NDArray

from fewbits.errors import ArgumentError
from fewbits.formats import Format
from fewbits.kernels.bits.lattice import REALS, SITES, Field, compress_links, decode_links, encode_links
from fewbits.solvers.lattice.hops import Hops
from fewbits.solvers.lattice.order import Shape, extent_of, grouped
from fewbits.solvers.lattice.packed_vectors import LatticeVectors
from fewbits.solvers.operators.cg_vectors import CGVectors
from fewbits.solvers.operators.operator import Apply, Operator
from fewbits.solvers.precision import KrylovPrecision
from fewbits.tensor import format as read

Array = NDArray[Any]  # reals, or integers of packed links
Reals = NDArray[np.float64]
DTYPES = {"fp64": np.float64, "fp32": np.float32, "quda_half": np.int16, "quda_quarter": np.int8}


class Normal(Operator):
    """M^+ M = H^2 with H = gamma_5 M, or that of its Schur complement, on the 24 real numbers of each site.

    The numbers lie in the order of the kernels, (groups, 24, 16) flattened: ``Wilson.flat`` and
    ``Wilson.spinor`` convert. If links and vectors have the same format, the vectors are packed in memory;
    see :class:`LatticeVectors`.

    Args:
        links: (4, T, Z, Y, X, 3, 3) complex128, checked.
        diagonal: 4 + mass.
        numbers: real numbers stored for each narrow link: 18, 12 or 8. The exact product uses at least 12.
        even_odd: whether M is its Schur complement on even sites; vectors are then zero on odd ones.
    """

    symmetric = True
    preferred = "half"

    def __init__(self, links: Array, diagonal: float, numbers: int, *, even_odd: bool = False) -> None:
        self.shape: Shape = links.shape[1:5]
        self.extent, self.diagonal, self.numbers = extent_of(self.shape), diagonal, numbers
        self.n = REALS * int(np.prod(self.shape))
        self.even_odd = even_odd
        self._matrices = links
        self._kept: dict[tuple[str, int], Array] = {}
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

    def even_odd_operator(self) -> Normal:
        """Return the operator of the Schur complement; it shares the links."""
        other = Normal(self._matrices, self.diagonal, self.numbers, even_odd=True)
        other._kept = self._kept
        return other

    def exact_hops(self) -> Hops:
        """Return H in float64."""
        return self._hops(self._exact_links())

    def hermitian(self, v: Reals) -> Reals:
        """Return H v, (n,) float64."""
        return self._hop(self._exact_links(), v, np.empty_like(v))

    def exact(self, v: torch.Tensor) -> torch.Tensor:
        """Return M^+ M v."""
        if not bool(v[0]) and not bool(v.any()):  # saves a product: solvers start from zero
            return torch.zeros_like(v)
        return torch.from_numpy(self._squared(self._exact_links(), v.numpy()))

    def rounded(self, format: Format | None) -> Apply:
        """Return the cheap product.

        Raises:
            ArgumentError: a format other than ``quda_half`` and ``quda_quarter``.
        """
        names = [name for name in DTYPES if name.startswith("quda") and read(name) == format]
        if format is not None and not names:
            raise ArgumentError(f"links cannot be held in {format}; expected fp32, quda_half or quda_quarter")
        links = self.links(np.float32)
        if names:
            links = decode_links(self.links(DTYPES[names[0]])).astype(np.float32)
        return lambda v: torch.from_numpy(self._squared(links, v.numpy()))

    def cg_vectors(self, precision: KrylovPrecision) -> CGVectors | None:
        """Return packed vectors if links and vectors have the same format, else None."""
        if precision.matrix != precision.vectors or precision.matrix not in DTYPES:
            return None
        return LatticeVectors(self._hops(self.links(DTYPES[precision.matrix])))

    def _hops(self, links: Array) -> Hops:
        return Hops(links, self.extent, self.diagonal, self.even_odd)

    def _exact_links(self) -> Array:
        # Reconstruction from 8 numbers loses digits near the identity, even in float64.
        return self.links(np.float64, max(self.numbers, 12))

    def _squared(self, links: Array, v: Array) -> Array:
        if self._scratch is None or self._scratch.dtype != v.dtype:
            self._scratch = np.empty_like(v)
        return self._hop(links, self._hop(links, v, self._scratch), np.empty_like(v))

    def _hop(self, links: Array, v: Array, out: Array) -> Array:
        shape = (len(links), REALS, SITES)
        if self.even_odd:
            out[:] = 0
        self._hops(links).apply(Field(v.reshape(shape)), Field(out.reshape(shape)))
        return out
