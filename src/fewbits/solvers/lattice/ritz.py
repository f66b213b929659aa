"""Ritz vectors of small eigenvalues, gathered while systems are solved, that deflate the systems after them.

Stathopoulos and Orginos, Computing and deflating eigenvalues while solving multiple right hand side linear
systems in quantum chromodynamics, 2010. Their eigCG projects onto the last directions of conjugate gradients
whenever a window of them is full, and keeps the lowest Ritz vectors of the whole window and of all but its
last direction. Here images of the directions come from the solver too, so that no product is added, and no
recurrence has to hold in 16 bits.
"""

from __future__ import annotations

import torch

from fewbits.errors import ArgumentError
from fewbits.formats import Format
from fewbits.solvers.krylov import Deflation
from fewbits.solvers.krylov.space import Space
from fewbits.solvers.krylov.torch_vectors import TorchVectors
from fewbits.solvers.lattice.packed_vectors import LatticeVectors
from fewbits.solvers.operators.cg_vectors import CGVectors
from fewbits.solvers.operators.operator import Apply, Derived, Operator
from fewbits.solvers.operators.vectors import wide
from fewbits.solvers.precision import KrylovPrecision

DEPENDENT = 1e-5  # of the largest: what lies below in a Gram matrix of float32 vectors is rounding


class RitzVectors:
    """Approximate eigenvectors of the smallest eigenvalues, which solves gather and those after them use.

    Pass one object to all solves with one operator: ``solve(b, deflation=vectors)``. It holds ``2 window``
    vectors in float32 while a solve gathers, and ``count`` vectors in ``format`` between solves.

    Args:
        count: vectors to keep, at least 1.
        window: directions to project onto at a time, at least 3 count; None for that many.
        solves: how many solves gather, at least 1; later ones only use what there is.
        format: the format that the vectors are packed in, complex numbers as pairs; None for float32.

    Raises:
        ArgumentError: a number is too small.
    """

    def __init__(
        self,
        count: int = 16,
        *,
        window: int | None = None,
        solves: int = 4,
        format: str | Format | None = "quda_half",
    ) -> None:
        size = 3 * count if window is None else window
        if count < 1 or solves < 1 or size < 3 * count:
            raise ArgumentError(
                f"count={count}, window={window}, solves={solves}; expected at least 1 vector and 1 solve, and"
                " a window of at least 3 count"
            )
        self.count, self.window, self.solves, self.format = count, size, solves, format
        self.deflation: Deflation | None = None
        self._operator: Operator | None = None
        self._open: Window | None = None

    def begin(self, a: Operator) -> Operator:
        """Return the operator for a solve; it shows the directions of conjugate gradients.

        Raises:
            ArgumentError: the vectors are of another operator.
        """
        if self._operator not in (None, a):
            raise ArgumentError(
                "the Ritz vectors are of another operator (even_odd=True solves with another one too); take"
                " new ones for each"
            )
        self._operator, self._open = a, None
        if self.solves == 0:
            return a
        self._open = Window(self.count, self.window)
        return Watched(a, self._open)

    def gather(self) -> None:
        """Join the vectors of the last solve with those before, and keep the lowest."""
        window, a = self._open, self._operator
        if window is None or a is None or window.filled <= self.count:
            return
        found = window.lowest()
        if self.deflation is not None:
            found = torch.cat([self.deflation.basis, found])
            images = torch.stack([a.exact(v) for v in wide(found).to(_double(a))])
            found = _combined(lowest(_gram(found, found), _gram(found, images), self.count), found)
        self.deflation = Deflation(a, found.mT.contiguous(), self.format)
        self.solves -= 1
        self._open = None


class Window:
    """The last directions p of conjugate gradients with their images, as rows, each of |p| = 1.

    An image is A p, or H p where A = H^2: ``through_root`` says which.
    """

    def __init__(self, keep: int, size: int) -> None:
        self.keep, self.size, self.filled = keep, size, 0
        self.through_root = False
        self._rows: tuple[torch.Tensor, torch.Tensor] | None = None

    def add(self, p: torch.Tensor, image: torch.Tensor, *, through_root: bool) -> None:
        """Add a direction; a full window is first projected onto its lowest Ritz vectors."""
        length = float(torch.linalg.vector_norm(p))
        if not 0 < length < float("inf"):
            return
        if self._rows is None:
            self._rows = p.new_empty(self.size, len(p)), p.new_empty(self.size, len(p))
        self.through_root = through_root
        if self.filled == self.size:
            self._project()
        for rows, v in zip(self._rows, (p, image), strict=True):
            torch.mul(v, 1 / length, out=rows[self.filled])
        self.filled += 1

    def lowest(self) -> torch.Tensor:
        """Return the lowest Ritz vectors, (keep, n)."""
        rows, gram, form = self._matrices()
        return _combined(lowest(gram, form, self.keep), rows[0])

    def _matrices(self) -> tuple[tuple[torch.Tensor, torch.Tensor], torch.Tensor, torch.Tensor]:
        """Return the rows, their Gram matrix and p^H A p between any two."""
        assert self._rows is not None
        p, image = (rows[: self.filled] for rows in self._rows)
        return (p, image), _gram(p, p), _gram(image if self.through_root else p, image)

    def _project(self) -> None:
        rows, gram, form = self._matrices()
        m = self.filled
        before = gram.new_zeros(m, self.keep)
        fewer = lowest(gram[: m - 1, : m - 1], form[: m - 1, : m - 1], self.keep)
        before[: m - 1, : fewer.shape[1]] = fewer
        both = torch.cat([lowest(gram, form, self.keep), before], 1)
        both = both @ orthonormal(both.mH @ gram @ both)
        self.filled = both.shape[1]
        for of_rows in rows:
            of_rows[: self.filled] = _combined(both, of_rows)


class Watched(Derived):
    """An operator whose directions of conjugate gradients a window sees."""

    def __init__(self, a: Operator, window: Window) -> None:
        super().__init__(a)
        self.window = window

    def exact(self, v: torch.Tensor) -> torch.Tensor:
        """Return A v."""
        return self.a.exact(v)

    def rounded(self, format: Format | None) -> Apply:
        """Return the product in the narrow format."""
        return self.a.rounded(format)

    def cg_vectors(self, precision: KrylovPrecision) -> CGVectors:
        """Return the vectors of the operator, or the general ones, watched."""
        own = self.a.cg_vectors(precision)
        vectors = TorchVectors(Space(self.a, precision)) if own is None else own
        if not isinstance(vectors, (LatticeVectors, TorchVectors)):
            return vectors
        return WatchedVectors(vectors, self.window)


class WatchedVectors:
    """The :class:`CGVectors` of another object, whose directions a window sees."""

    def __init__(self, vectors: LatticeVectors | TorchVectors, window: Window) -> None:
        self.vectors, self.window = vectors, window

    def load(self, r: torch.Tensor) -> tuple[float, float, float]:
        """Load r and set x to zero; return r.r, r.z and r.p."""
        return self.vectors.load(r)

    def update_direction(self, gamma: float, beta: float) -> tuple[float, float]:
        """Let p = gamma z + beta p, and compute A p; return p.Ap and p.p."""
        sums = self.vectors.update_direction(gamma, beta)
        if isinstance(self.vectors, LatticeVectors):
            p, image = self.vectors.direction()
            self.window.add(p, image, through_root=True)
        else:
            self.window.add(_single(self.vectors.p), _single(self.vectors.image), through_root=False)
        return sums

    def update_residual(self, alpha: float) -> tuple[float, float, float]:
        """Let x += alpha p and r -= alpha A p; return r.r, r.z and the old r.z."""
        return self.vectors.update_residual(alpha)

    def partial_solution(self) -> torch.Tensor:
        """Return x; the next call overwrites it."""
        return self.vectors.partial_solution()


def begin(a: Operator, deflation: Deflation | RitzVectors | None) -> tuple[Operator, Deflation | None]:
    """Return the operator and the modes for a solve.

    Raises:
        ArgumentError: the modes are of another operator.
    """
    if isinstance(deflation, RitzVectors):
        return deflation.begin(a), deflation.deflation
    if deflation is not None and a not in (deflation.a, getattr(deflation.a, "a", None)):
        raise ArgumentError(
            "deflation= has the modes of another operator; expected those of .normal, or of"
            " .normal.even_odd_operator() with even_odd=True"
        )
    return a, deflation


def gather(deflation: Deflation | RitzVectors | None) -> None:
    """Let Ritz vectors take what the solve has shown."""
    if isinstance(deflation, RitzVectors):
        deflation.gather()


def lowest(gram: torch.Tensor, form: torch.Tensor, count: int) -> torch.Tensor:
    """Return the coefficients of the lowest Ritz vectors, (m, count) or fewer columns, orthonormal in gram.

    Args:
        gram: (m, m) float64 or complex128, v_i^H v_j.
        form: v_i^H A v_j.
        count: how many.
    """
    basis = orthonormal(gram)
    projected = basis.mH @ form @ basis
    _, vectors = torch.linalg.eigh((projected + projected.mH) / 2)
    return basis @ vectors[:, :count]


def orthonormal(gram: torch.Tensor) -> torch.Tensor:
    """Return coefficients of an orthonormal basis of the span of vectors with this Gram matrix."""
    values, vectors = torch.linalg.eigh((gram + gram.mH) / 2)
    kept = values > DEPENDENT * values[-1]
    return vectors[:, kept] / values[kept].sqrt()


def _gram(u: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    """Return u_i^H v_j of rows, in double precision."""
    return wide(u.conj() @ v.to(u.dtype).mT)


def _combined(coefficients: torch.Tensor, rows: torch.Tensor) -> torch.Tensor:
    """Return the combinations of rows, one for each column of coefficients."""
    return coefficients.mT.to(rows.dtype) @ rows


def _single(v: torch.Tensor) -> torch.Tensor:
    return v.to(torch.complex64 if v.is_complex() else torch.float32)


def _double(a: Operator) -> torch.dtype:
    return torch.complex128 if a.complex else torch.float64
