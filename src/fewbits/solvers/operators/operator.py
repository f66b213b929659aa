"""The interface of a linear operator, and shifted, scaled and complex forms of one."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch

from fewbits.errors import ArgumentError
from fewbits.formats import Format
from fewbits.kernels.portable.dense.residuals import exact_product, rounded_off
from fewbits.solvers.operators.cg_vectors import CGVectors
from fewbits.solvers.operators.vectors import from_reals, largest, reals, times_power, wide
from fewbits.solvers.precision import KrylovPrecision

Apply = Callable[[torch.Tensor], torch.Tensor]


class Operator:
    """A linear operator as the solvers use it; square except in least-squares problems.

    Attributes:
        n: unknowns; in a partitioned operator, those of this process.
        rows: length of A v; n except in a least-squares problem.
        unknowns: total over all processes.
        start: of the first unknown of this process, its place among all.
        symmetric: whether A is known to be symmetric (Hermitian if complex), so that no test is needed.
        complex: whether A is complex; it then takes and returns complex vectors.
        preferred: the precision that ``auto`` tries first.
        device: where the vectors lie that it multiplies.
    """

    n: int
    device = torch.device("cpu")
    unknowns = 0  # 0 stands for n
    start = 0
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
        """Return the true residual b - A x, in more than double precision if the values of A are known."""
        return b - self.exact(x)

    def adjoint(self) -> Operator:
        """Return A^H.

        Raises:
            ArgumentError: the adjoint is not known.
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
        """Return vectors that use this operator's own kernels, or None to use the general ones."""
        del precision
        return None

    def total(self, sums: torch.Tensor) -> torch.Tensor:
        """Return sums over all unknowns in double precision, given the sums over those of this process."""
        return sums

    def peak(self, v: torch.Tensor) -> float:
        """Return the largest magnitude in v over all unknowns."""
        return largest(v)

    def magnitude(self) -> float:
        """Estimate the largest magnitude in A: from its values for a matrix, else from a product."""
        (v,) = random_vectors(self, 1)
        return self.peak(self.exact(v))

    def dot(self, u: torch.Tensor, v: torch.Tensor) -> float:
        """Return u^H v over all unknowns, summed in float64 (complex, for complex vectors)."""
        product: float = self.total(torch.vdot(wide(u), wide(v))).item()
        return product

    def norm(self, v: torch.Tensor) -> float:
        """Return the Euclidean norm over all unknowns."""
        return float(self.total(torch.vdot(wide(v), wide(v)).real).sqrt())


def random_vectors(a: Operator, count: int) -> list[torch.Tensor]:
    """Return vectors of random numbers that A multiplies, (n,) float64 or complex128.

    Each process draws its own: with the same numbers in all, products between processes may cancel.
    """
    generator = torch.Generator().manual_seed(a.start)
    dtype = torch.complex128 if a.complex else torch.float64
    return [torch.randn(a.n, generator=generator, dtype=dtype).to(a.device) for _ in range(count)]


class Derived(Operator):
    """Base of operators derived from another one; they share its sums and sizes."""

    def __init__(self, a: Operator) -> None:
        self.a, self.n, self.unknowns, self.start = a, a.n, a.unknowns, a.start
        self.symmetric, self.complex, self.preferred = a.symmetric, a.complex, a.preferred
        self.device = a.device

    @property
    def rows(self) -> int:
        """Return how many values A v has."""
        return self.a.rows

    def total(self, sums: torch.Tensor) -> torch.Tensor:
        """Return sums over all unknowns, given the sums over those of this process."""
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
        """Return the true residual b - A x, (rows,); what the shift rounds off is added at the end.

        Where the shift cancels most of A, that is all there is to see.
        """
        shift = torch.tensor(self.shift, dtype=torch.float64, device=x.device)
        right = reals(b)
        product, low = exact_product(shift, reals(x))
        left = right - product
        rest = from_reals(rounded_off(right, -product, left) - low, pairs=b.is_complex())
        return self.a.residual(from_reals(left, pairs=b.is_complex()), x) + rest

    def rounded(self, format: Format | None) -> Apply:
        """Return the product in the narrow format; the shift is float32."""
        apply = self.a.rounded(format)
        return lambda v: apply(v) + self.shift * v

    def adjoint(self) -> Operator:
        """Return A^H."""
        return Shifted(self.a.adjoint(), self.shift)

    def scaled(self, exponent: int) -> Operator:
        """Return A 2^exponent."""
        return Shifted(self.a.scaled(exponent), math.ldexp(self.shift, exponent))


class Scaled(Derived):
    """A times a power of two."""

    def __init__(self, a: Operator, exponent: int) -> None:
        super().__init__(a)
        self.exponent = exponent

    def exact(self, v: torch.Tensor) -> torch.Tensor:
        """Return A v 2^exponent."""
        return times_power(self.a.exact(v), self.exponent)

    def rounded(self, format: Format | None) -> Apply:
        """Return the product in the narrow format; the values of A are rounded before they are scaled."""
        apply = self.a.rounded(format)
        return lambda v: times_power(wide(apply(v)), self.exponent).to(v.dtype)

    def adjoint(self) -> Operator:
        """Return A^H."""
        return Scaled(self.a.adjoint(), self.exponent)


class OnPairs(Derived):
    """A real operator applied to complex vectors: to real and imaginary parts separately."""

    def __init__(self, a: Operator) -> None:
        super().__init__(a)
        self.complex = True

    def exact(self, v: torch.Tensor) -> torch.Tensor:
        """Return A v, (n,) complex128."""
        return _on_parts(self.a.exact, v)

    def residual(self, b: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        """Return the true residual b - A x, (rows,)."""
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
        """Return an estimate of the largest magnitude in A."""
        return self.a.magnitude()


def _on_parts(apply: Apply, v: torch.Tensor) -> torch.Tensor:
    # Copied, because a product may return memory that the next one overwrites.
    real = apply(v.real.contiguous()).clone()
    return torch.complex(real, apply(v.imag.contiguous()))
