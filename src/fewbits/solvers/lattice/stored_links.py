"""Links as operators keep them: packed numbers in the order of the kernels, once for each format."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

from fewbits.errors import ArgumentError
from fewbits.formats import Format
from fewbits.kernels.bits.lattice import SITES, Field, compress_links, decode_links, encode_links
from fewbits.solvers.lattice.domain import Domain
from fewbits.solvers.lattice.order import grouped
from fewbits.tensor import format as read

Array = NDArray[Any]  # reals, or integers of packed links
DTYPES = {"fp64": np.float64, "fp32": np.float32, "quda_half": np.int16, "quda_quarter": np.int8}


class StoredLinks:
    """The links of a process.

    Args:
        matrices: (4, T, Z, Y, X, 3, 3) complex128, checked, with the signs of a boundary.
        domain: of these sites.
        numbers: real numbers stored for each narrow link: 18, 12 or 8.
    """

    def __init__(self, matrices: Array, domain: Domain, numbers: int) -> None:
        self._matrices, self.domain, self.numbers = matrices, domain, numbers
        self._kept: dict[tuple[str, int], Array] = {}

    def stored(self, dtype: DTypeLike, numbers: int | None = None) -> Array:
        """Return the links as they are stored, (groups, 4, numbers, 16), with those of the halo."""
        key = np.dtype(dtype).name, self.numbers if numbers is None else numbers
        if key not in self._kept:
            stored = encode_links(compress_links(self._matrices, key[1]), dtype)
            by_site = np.moveaxis(stored, 0, 4).reshape(*self.domain.shape, -1)
            links = self.domain.with_room(grouped(by_site))
            self.domain.fill(Field(links))
            self._kept[key] = links.reshape(len(links), 4, key[1], SITES)
        return self._kept[key]

    def exact(self) -> Array:
        """Return the links in float64, at least 12 numbers of each.

        Reconstruction from 8 numbers loses digits near the identity, even in float64.
        """
        return self.stored(np.float64, max(self.numbers, 12))

    def rounded(self, format: Format | None) -> tuple[Array, DTypeLike]:
        """Return the links in float32 with the values that a format has, and the dtype that it is stored in.

        Raises:
            ArgumentError: a format other than ``quda_half`` and ``quda_quarter``.
        """
        names = [name for name in DTYPES if name.startswith("quda") and read(name) == format]
        if format is not None and not names:
            raise ArgumentError(f"links cannot be held in {format}; expected fp32, quda_half or quda_quarter")
        if not names:
            return self.stored(np.float32), np.float32
        dtype = DTYPES[names[0]]
        return decode_links(self.stored(dtype)).astype(np.float32), dtype
