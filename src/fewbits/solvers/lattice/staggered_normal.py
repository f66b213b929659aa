"""The normal equations of staggered fermions, M^+ M x = M^+ b, on all sites or on those of one parity."""

from __future__ import annotations

from typing import Any

import numpy as np
import scipy.sparse
import torch
from numpy.typing import NDArray

from fewbits.errors import ArgumentError
from fewbits.formats import Format
from fewbits.kernels.bits.lattice import INTEGER_MAX
from fewbits.solvers.krylov.space import Space
from fewbits.solvers.krylov.torch_vectors import TorchVectors
from fewbits.solvers.lattice.square_operator import Square
from fewbits.solvers.operators.cg_vectors import CGVectors
from fewbits.solvers.operators.operator import Apply
from fewbits.solvers.precision import KrylovPrecision
from fewbits.tensor import format as read

# A norm for each site, which has 6 real numbers here and 24 in quda_half and quda_quarter.
SITE = {
    name: f"block(element=int({bits},coding=symmetric),scale=fp32,size=6)"
    for name, bits in (("quda_half", 16), ("quda_quarter", 8))
}
TOPS = {"quda_half": INTEGER_MAX["int16"], "quda_quarter": INTEGER_MAX["int8"]}


class StaggeredNormal(Square):
    """M^+ M = m^2 + B^+ B on complex vectors: B is D on all sites, or what of D leads from even to odd ones.

    As D^+ = -D, D only leads from one parity to the other, and M^+ M = m^2 - D^2 does not mix them.

    Args:
        b: B, complex128, entries half of a link's with a sign.
        mass: m.
        signs: 1 on even and -1 on odd unknowns; None where all are even.
    """

    symmetric = True
    complex = True
    preferred = "half"

    def __init__(
        self, b: scipy.sparse.csr_array, mass: float, signs: NDArray[np.float64] | None = None
    ) -> None:
        self.n, self.mass, self.signs = b.shape[1], mass, signs
        self.b, self.back = b, b.conj().T.tocsr()

    def hermitian(self, v: NDArray[Any]) -> NDArray[Any]:
        """Return H v with H = epsilon M, epsilon = 1 on even and -1 on odd sites: H^2 = M^+ M."""
        assert self.signs is not None
        image: NDArray[Any] = self.signs * (self.mass * v + self.b @ v)
        return image

    def exact(self, v: torch.Tensor) -> torch.Tensor:
        """Return M^+ M v, (n,) complex128."""
        w = v.numpy()
        return torch.from_numpy(self.mass**2 * w + self.back @ (self.b @ w))

    def rounded(self, format: Format | None) -> Apply:
        """Return the product with a complex64 vector; links have the values of the format, in float32.

        Raises:
            ArgumentError: a format other than ``quda_half`` and ``quda_quarter``.
        """
        names = [name for name in TOPS if read(name) == format]
        if format is not None and not names:
            raise ArgumentError(f"links cannot be held in {format}; expected fp32, quda_half or quda_quarter")
        b = scipy.sparse.csr_array(self.b)
        if names:
            top = TOPS[names[0]]
            codes = np.rint(2 * top * b.data.view(np.float64)).view(np.complex128)
            b.data = codes / (2 * top)
        low = b.astype(np.complex64)
        back, square = low.conj().T.tocsr(), np.float32(self.mass**2)

        def apply(v: torch.Tensor) -> torch.Tensor:
            w = v.numpy()
            return torch.from_numpy(square * w + back @ (low @ w))

        return apply

    def cg_vectors(self, precision: KrylovPrecision) -> CGVectors:
        """Return the general vectors, with a norm for each site where a precision has norms."""
        vectors = SITE.get(precision.vectors, precision.vectors)
        return TorchVectors(Space(self, KrylovPrecision(precision.name, precision.matrix, vectors)))
