"""Ritz vectors of small eigenvalues, gathered while systems are solved, that deflate the systems after them.

Stathopoulos and Orginos, Computing and deflating eigenvalues while solving multiple right hand side linear
systems in quantum chromodynamics, 2010. Their eigCG projects onto the last directions of conjugate gradients
whenever a window of them is full, and keeps the lowest Ritz vectors of the whole window and of all but its
last direction. Here images of the directions come from the solver too, so that no product is added, and no
recurrence has to hold in 16 bits.
"""

from __future__ import annotations

import math

import torch

from fewbits.errors import ArgumentError
from fewbits.formats import Format
from fewbits.solvers.krylov import Deflation
from fewbits.solvers.krylov.space import Space, rounding_format
from fewbits.solvers.krylov.torch_vectors import TorchVectors
from fewbits.solvers.lattice.packed_vectors import LatticeVectors
from fewbits.solvers.lattice.square_operator import Square
from fewbits.solvers.operators.cg_vectors import CGVectors
from fewbits.solvers.operators.operator import Apply, Derived, Operator
from fewbits.solvers.operators.vectors import wide
from fewbits.solvers.precision import KrylovPrecision
from fewbits.tensor import format as read
from fewbits.tensor.inputs import is_count

DEPENDENT = 1e-5  # of the largest: what lies below in a Gram matrix of float32 vectors is rounding

INDEPENDENT = 1e-12  # of V^H A V: directions of smaller eigenvalues are rounding error


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
        ArgumentError: a number is too small, or not whole.
        FormatError: there is no such format.
    """

    def __init__(
        self,
        count: int = 16,
        *,
        window: int | None = None,
        solves: int = 4,
        format: str | Format | None = "quda_half",
    ) -> None:
        size = 3 * count if window is None and is_count(count) else window
        if size is None or not all(is_count(n) for n in (count, solves, size)) or size < 3 * count:
            raise ArgumentError(
                f"count={count!r}, window={window!r}, solves={solves!r}; expected at least 1 vector and 1"
                " solve, and a window of at least 3 count, whole numbers"
            )
        self.count, self.window, self.solves = count, size, solves
        self.format = None if format is None else read(format)
        self.deflation: Deflation | None = None
        self._projectors: dict[str, Projector] = {}
        self._operator: Square | None = None
        self._open: Window | None = None

    def begin(self, a: Square) -> Operator:
        """Return the operator for a solve: its directions are projected, and seen while vectors are gathered.

        Raises:
            ArgumentError: the vectors are of another operator.
        """
        if self._operator not in (None, a):
            raise ArgumentError(
                "the Ritz vectors are of another operator (even_odd=True solves with another one too); take"
                " new ones for each"
            )
        self._operator = a
        self._open = Window(self.count, self.window, a) if self.solves else None
        return Watched(a, self._open, self.deflation, self._projectors)

    def gather(self) -> None:
        """Join the vectors of the last solve with those before, and keep the lowest."""
        window, a = self._open, self._operator
        if window is None or a is None or window.filled <= self.count:
            return
        if a.turned is None:
            found = window.lowest(self.count)
        else:
            found = window.lowest((self.count + 1) // 2)
            found = torch.cat([found, a.turned(found)])
        if self.deflation is not None:
            found = torch.cat([self.deflation.basis, found])
        # With products in double precision: narrow images blur small eigenvalues, and some vectors may be
        # nearly those that are there already.
        images = torch.stack([a.exact(v) for v in wide(found).to(_double(a))])
        gram, form = a.total(_gram(found, found)), a.total(wide(found.conj()) @ images.mT)
        found = _combined(lowest(gram, form, self.count), found)
        self.deflation = Deflation(a, found.mT.contiguous(), self.format)
        self._projectors = {}
        self.solves -= 1
        self._open = None


class Window:
    """The last directions p of conjugate gradients with their images, as rows, each of |p| = 1.

    An image is A p, or H p where A = H^2: ``through_root`` says which.
    """

    def __init__(self, keep: int, size: int, a: Operator) -> None:
        self.keep, self.size, self.filled, self.a = keep, size, 0, a
        self.through_root = False
        self._rows: tuple[torch.Tensor, torch.Tensor] | None = None

    def add(self, p: torch.Tensor, image: torch.Tensor, *, through_root: bool) -> None:
        """Add a direction; a full window is first projected onto its lowest Ritz vectors."""
        length = float(self.a.norm(p))
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

    def lowest(self, count: int) -> torch.Tensor:
        """Return the lowest Ritz vectors, (count, n)."""
        rows, gram, form = self._matrices()
        return _combined(lowest(gram, form, count), rows[0])

    def _matrices(self) -> tuple[tuple[torch.Tensor, torch.Tensor], torch.Tensor, torch.Tensor]:
        """Return the rows, their Gram matrix and p^H A p between any two."""
        assert self._rows is not None
        p, image = (rows[: self.filled] for rows in self._rows)
        gram, form = _gram(p, p), _gram(image if self.through_root else p, image)
        return (p, image), self.a.total(gram), self.a.total(form)

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


class Projector:
    """Takes from a direction what makes it not A-orthogonal to modes.

    Saad, Yeung, Erhel and Guyomarc'h, A deflated version of the conjugate gradient algorithm, 2000. Modes
    that are only nearly eigenvectors, by an angle, then cost its square; taken out of the first residual
    alone, they would come back.
    """

    def __init__(self, a: Operator, deflation: Deflation, precision: KrylovPrecision) -> None:
        self._a = a
        # In double precision: errors of float32 are multiplied by up to |A| over the smallest eigenvalue. The
        # images are of the matrix as the solver holds it: those of another one leave residuals in the span of
        # the modes, where no direction reduces them.
        self._modes = wide(deflation.basis).to(_double(a))
        apply = a.exact
        if not precision.double:
            low, narrow = a.rounded(rounding_format(precision.matrix)), _single(self._modes[0]).dtype
            apply = lambda v: low(v.to(narrow))  # noqa: E731
        self._images = torch.stack([wide(apply(v)) for v in self._modes])
        gram = a.total(_gram(self._modes, self._images))
        self._inverse = torch.linalg.pinv((gram + gram.mH) / 2, hermitian=True, rtol=INDEPENDENT)

    def correction(self, r: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Return V y and A V y in double precision, with y = (V^H A V)^-1 V^H r: what the modes say of r."""
        y = self._inverse @ self._a.total(self._modes.conj() @ wide(r))
        return y @ self._modes, y @ self._images

    def __call__(self, p: torch.Tensor) -> torch.Tensor:
        """Return p - V (V^H A V)^-1 (A V)^H p, in the dtype of p."""
        v = wide(p)
        overlaps = self._a.total(self._images.conj() @ v)
        projected: torch.Tensor = v - (self._inverse @ overlaps) @ self._modes
        return projected.to(p.dtype)


class Watched(Derived):
    """An operator whose directions of conjugate gradients a window sees, or a projector changes."""

    def __init__(
        self,
        a: Operator,
        window: Window | None,
        modes: Deflation | None,
        projectors: dict[str, Projector],
    ) -> None:
        super().__init__(a)
        self.window, self.modes, self._projectors = window, modes, projectors

    def dot(self, u: torch.Tensor, v: torch.Tensor) -> float:
        """Return u^H v over all unknowns."""
        return self.a.dot(u, v)

    def norm(self, v: torch.Tensor) -> float:
        """Return the Euclidean norm over all unknowns."""
        return self.a.norm(v)

    def exact(self, v: torch.Tensor) -> torch.Tensor:
        """Return A v."""
        return self.a.exact(v)

    def rounded(self, format: Format | None) -> Apply:
        """Return the product in the narrow format."""
        return self.a.rounded(format)

    def cg_vectors(self, precision: KrylovPrecision) -> CGVectors:
        """Return the vectors of the operator, or the general ones, watched."""
        own, projector = self.a.cg_vectors(precision), self._projector(precision)
        if isinstance(own, LatticeVectors):
            own.projector = projector
            return own if self.window is None else WatchedVectors(own, self.window)
        general = ProjectedVectors(Space(self.a, precision), projector)
        return general if self.window is None else WatchedVectors(general, self.window)

    def _projector(self, precision: KrylovPrecision) -> Projector | None:
        if self.modes is not None and precision.name not in self._projectors:
            self._projectors[precision.name] = Projector(self.a, self.modes, precision)
        return self._projectors.get(precision.name)


class ProjectedVectors(TorchVectors):
    """The vectors of any operator and format, with directions projected."""

    def __init__(self, space: Space, projector: Projector | None) -> None:
        super().__init__(space)
        self.projector = projector

    def update_direction(self, gamma: float, beta: float) -> tuple[float, float]:
        """Let p = gamma z + beta p, projected, and compute A p; return p.Ap and p.p."""
        if self.projector is not None:
            self.z = self.projector(self.z)
        return super().update_direction(gamma, beta)

    def update_residual(self, alpha: float) -> tuple[float, float, float]:
        """Let x += alpha p and r -= alpha A p, without a part for the modes; return r.r twice, and r.old."""
        old, sums = self.r, super().update_residual(alpha)
        if self.projector is None or not math.isfinite(sums[0]):
            return sums
        # Rounding leaves a residual in the span of the modes, which no projected direction reduces.
        step, image = self.projector.correction(self.r)
        self.x.add_(step)
        self.r = self.z = self.space.rounded(self.r - image.to(self.r.dtype))
        rr = self.dot(self.r, self.r)
        return rr, rr, self.dot(old, self.r)


class WatchedVectors:
    """The :class:`CGVectors` of another object, whose directions a window sees."""

    def __init__(self, vectors: LatticeVectors | ProjectedVectors, window: Window) -> None:
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


def begin(a: Square, deflation: Deflation | RitzVectors | None) -> tuple[Operator, Deflation | None]:
    """Return the operator and the modes for a solve.

    Raises:
        ArgumentError: the modes are of another operator, or none.
    """
    if isinstance(deflation, RitzVectors):
        return deflation.begin(a), deflation.deflation
    if deflation is not None and not isinstance(deflation, Deflation):
        raise ArgumentError(
            f"deflation is a {type(deflation).__name__}; expected RitzVectors, or a Deflation of .normal"
        )
    if deflation is not None and a not in (deflation.a, getattr(deflation.a, "a", None)):
        raise ArgumentError(
            "deflation= has the modes of another operator; expected those of .normal, or of"
            " .normal.even_odd_operator() with even_odd=True"
        )
    return (a if deflation is None else Watched(a, None, deflation, {})), deflation


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
    found: torch.Tensor = basis @ vectors[:, :count]
    return found


def orthonormal(gram: torch.Tensor) -> torch.Tensor:
    """Return coefficients of an orthonormal basis of the span of vectors with this Gram matrix."""
    values, vectors = torch.linalg.eigh((gram + gram.mH) / 2)
    kept = values > DEPENDENT * values[-1]
    basis: torch.Tensor = vectors[:, kept] / values[kept].sqrt()
    return basis


def _gram(u: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    """Return u_i^H v_j of rows, in double precision."""
    return wide(u.conj() @ v.to(u.dtype).mT)


def _combined(coefficients: torch.Tensor, rows: torch.Tensor) -> torch.Tensor:
    """Return the combinations of rows, one for each column of coefficients."""
    combined: torch.Tensor = coefficients.mT.to(rows.dtype) @ rows
    return combined


def _single(v: torch.Tensor) -> torch.Tensor:
    return v.to(torch.complex64 if v.is_complex() else torch.float32)


def _double(a: Operator) -> torch.dtype:
    return torch.complex128 if a.complex else torch.float64
