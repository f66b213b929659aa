"""What the solvers ask of a linear map, and what is made of one: shifted, scaled, and on complex vectors."""

from __future__ import annotations

from collections.abc import Callable

import torch

from fewbits.errors import ArgumentError
from fewbits.formats import Format
from fewbits.solvers.operators.cg_vectors import CGVectors
from fewbits.solvers.operators.vectors import largest, times_power, wide
from fewbits.solvers.precision import KrylovPrecision

Apply = Callable[[torch.Tensor], torch.Tensor]


class Operator:
    """A square matrix as what the solvers ask of it.

    Attributes:
        n: unknowns; in a partitioned operator, those that lie here.
        rows: values of A v; n but for the matrix of a least-squares problem.
        unknowns: of all processes.
        symmetric: whether that (Hermitian, if it is complex) is known without trying.
        complex: whether it makes complex vectors of real ones, and takes complex ones.
        preferred: the precision that ``auto`` tries first.
    """

    n: int
    unknowns = 0  # as many as n where nothing else is said
    symmetric = False
    complex = False
    preferred = "single"

    @property
    def rows(self) -> int:
        """Return how many values A v has."""
        return self.n

    def exact(self, v: torch.Tensor) -> torch.Tensor:
        """Return A v, (n,) float64 or complex128, computed in double precision."""
        raise NotImplementedError

    def rounded(self, format: Format | None) -> Apply:
        """Return the product with a float32 or complex64 vector, with A's values held in ``format``.

        None keeps them in float32. Complex values are held as pairs of real ones.
        """
        raise NotImplementedError

    def residual(self, b: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        """Return b - A x as it is judged by: in more than double precision where A's values are known."""
        return b - self.exact(x)

    def adjoint(self) -> Operator:
        """Return A^H.

        Raises:
            ArgumentError: it is not known.
        """
        if self.symmetric:
            return self
        raise ArgumentError(
            f"{type(self).__name__} cannot multiply by its adjoint; give a matrix, or a LinearOperator with"
            " rmatvec"
        )

    def shifted(self, shift: float) -> Operator:
        """Return A + shift."""
        return Shifted(self, shift)

    def scaled(self, exponent: int) -> Operator:
        """Return A 2^exponent."""
        return Scaled(self, exponent)

    def cg_vectors(self, precision: KrylovPrecision) -> CGVectors | None:
        """Return vectors that live in this operator's own kernels, or None where the general ones serve."""
        del precision
        return None

    def total(self, sums: torch.Tensor) -> torch.Tensor:
        """Return sums in double precision over all unknowns, given those over the ones that lie here."""
        return sums

    def peak(self, v: torch.Tensor) -> float:
        """Return the largest magnitude in v over all unknowns."""
        return largest(v)

    def magnitude(self) -> float:
        """Return about the largest magnitude in A: of a matrix that of its values, else of a product."""
        generator = torch.Generator().manual_seed(0)
        v = torch.randn(self.n, generator=generator, dtype=torch.float64)
        return self.peak(self.exact(v.to(torch.complex128) if self.complex else v))

    def dot(self, u: torch.Tensor, v: torch.Tensor) -> float:
        """Return u^H v over all unknowns, summed in float64 (complex, for complex vectors)."""
        product: float = self.total(torch.vdot(wide(u), wide(v))).item()
        return product

    def norm(self, v: torch.Tensor) -> float:
        """Return the Euclidean norm over all unknowns."""
        return float(self.total(torch.vdot(wide(v), wide(v)).real).sqrt())


class Derived(Operator):
    """Another operator, changed; sums and sizes are its own."""

    def __init__(self, a: Operator) -> None:
        self.a, self.n, self.unknowns = a, a.n, a.unknowns
        self.symmetric, self.complex, self.preferred = a.symmetric, a.complex, a.preferred

    @property
    def rows(self) -> int:
        """Return how many values A v has."""
        return self.a.rows

    def total(self, sums: torch.Tensor) -> torch.Tensor:
        """Return sums over all unknowns, given those over the ones that lie here."""
        return self.a.total(sums)

    def peak(self, v: torch.Tensor) -> float:
        """Return the largest magnitude in v over all unknowns."""
        return self.a.peak(v)


class Shifted(Derived):
    """A plus a real multiple of the identity."""

    def __init__(self, a: Operator, shift: float) -> None:
        super().__init__(a)
        self.shift = shift

    def exact(self, v: torch.Tensor) -> torch.Tensor:
        """Return A v + shift v."""
        return self.a.exact(v) + self.shift * v

    def residual(self, b: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        """Return b - A x, (rows,), as it is judged by."""
        return self.a.residual(b, x) - self.shift * x

    def rounded(self, format: Format | None) -> Apply:
        """Return the cheap product; the shift is float32."""
        apply = self.a.rounded(format)
        return lambda v: apply(v) + self.shift * v

    def adjoint(self) -> Operator:
        """Return A^H."""
        return Shifted(self.a.adjoint(), self.shift)

    def scaled(self, exponent: int) -> Operator:
        """Return A 2^exponent."""
        return Shifted(self.a.scaled(exponent), self.shift * 2.0**exponent)


class Scaled(Derived):
    """A times a power of two."""

    def __init__(self, a: Operator, exponent: int) -> None:
        super().__init__(a)
        self.exponent = exponent

    def exact(self, v: torch.Tensor) -> torch.Tensor:
        """Return A v 2^exponent."""
        return times_power(self.a.exact(v), self.exponent)

    def rounded(self, format: Format | None) -> Apply:
        """Return the cheap product; A's own has to hold its values before they are scaled."""
        apply = self.a.rounded(format)
        return lambda v: times_power(wide(apply(v)), self.exponent).to(v.dtype)

    def adjoint(self) -> Operator:
        """Return A^H."""
        return Scaled(self.a.adjoint(), self.exponent)


class OnPairs(Derived):
    """A real operator on complex vectors: on real parts, and on imaginary parts."""

    def __init__(self, a: Operator) -> None:
        super().__init__(a)
        self.complex = True

    def exact(self, v: torch.Tensor) -> torch.Tensor:
        """Return A v, (n,) complex128."""
        return _on_parts(self.a.exact, v)

    def residual(self, b: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        """Return b - A x, (rows,), as it is judged by."""
        parts = (
            self.a.residual(p.contiguous(), q.contiguous()) for p, q in ((b.real, x.real), (b.imag, x.imag))
        )
        return torch.complex(*parts)

    def rounded(self, format: Format | None) -> Apply:
        """Return the product with a float32 or complex64 vector, A's values held in ``format``."""
        apply = self.a.rounded(format)
        return lambda v: _on_parts(apply, v)

    def adjoint(self) -> Operator:
        """Return A^H."""
        return OnPairs(self.a.adjoint())

    def shifted(self, shift: float) -> Operator:
        """Return A + shift."""
        return OnPairs(self.a.shifted(shift))

    def scaled(self, exponent: int) -> Operator:
        """Return A 2^exponent."""
        return OnPairs(self.a.scaled(exponent))

    def magnitude(self) -> float:
        """Return about the largest magnitude in A."""
        return self.a.magnitude()


def _on_parts(apply: Apply, v: torch.Tensor) -> torch.Tensor:
    # A product may give memory that the next one writes over.
    real = apply(v.real.contiguous()).clone()
    return torch.complex(real, apply(v.imag.contiguous()))
