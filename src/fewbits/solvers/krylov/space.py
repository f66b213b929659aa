"""A Krylov space in PyTorch: the narrow product with A, and the rounding of stored vectors."""

from __future__ import annotations

import torch

from fewbits.formats import Format
from fewbits.solvers.operators.operator import Operator
from fewbits.solvers.operators.vectors import from_reals, reals, wide
from fewbits.solvers.precision import KrylovPrecision, mean_error
from fewbits.tensor import NarrowTensor, fake_quantize, quantize
from fewbits.tensor import format as read

Packed = torch.Tensor | NarrowTensor


class Space:
    """Vectors of one operator, rounded to the format of a precision, as float32 (float64 in double).

    Complex vectors are rounded as pairs of real ones and stored as complex64 (complex128).

    Args:
        operator: A.
        precision: the formats of A and of the vectors.
        preconditioner: an operator close to A^-1; None for none.
    """

    def __init__(
        self, operator: Operator, precision: KrylovPrecision, preconditioner: Operator | None = None
    ) -> None:
        self.operator, self.preconditioner = operator, preconditioner
        self.pairs = operator.complex
        if self.pairs:
            self.dtype = torch.complex128 if precision.double else torch.complex64
        else:
            self.dtype = torch.float64 if precision.double else torch.float32
        self.apply = (
            operator.exact if precision.double else operator.rounded(rounding_format(precision.matrix))
        )
        self.format = rounding_format(precision.vectors)
        self.precision = precision

    def rounded(self, v: torch.Tensor) -> torch.Tensor:
        """Return ``v`` rounded to the format of the vectors."""
        v = v.to(self.dtype)
        return (
            v if self.format is None else from_reals(fake_quantize(reals(v), self.format), pairs=self.pairs)
        )

    def rounded_copy(self, v: torch.Tensor) -> torch.Tensor:
        """Return ``v`` rounded to the format of the vectors, always as a copy."""
        rounded = self.rounded(v)
        return rounded.clone() if rounded is v else rounded

    def packed(self, v: torch.Tensor) -> Packed:
        """Return ``v`` packed, if the vectors have a format; :meth:`unpacked` reverses it."""
        v = v.to(self.dtype)
        return v if self.format is None else quantize(reals(v), self.format)

    def unpacked(self, v: Packed) -> torch.Tensor:
        """Return the packed vector as float32 (float64 in double)."""
        return from_reals(v.dense(), pairs=self.pairs) if isinstance(v, NarrowTensor) else v

    def preconditioned(self, v: torch.Tensor) -> torch.Tensor:
        """Return M v rounded like ``v``, or ``v`` itself without a preconditioner."""
        return v if self.preconditioner is None else self.rounded(self.preconditioner.exact(wide(v)))


def rounding_format(format: str) -> Format | None:
    """Return the format to round float32 vectors to, or None for fp32 and fp64."""
    return None if format in ("fp64", "fp32") else read(format)


def roundoff(precision: KrylovPrecision) -> float:
    """Return the relative error of rounding a vector, measured on a random one."""
    fmt = rounding_format(precision.vectors)
    if fmt is None:
        return 2.0**-53 if precision.double else 2.0**-24
    return mean_error(fmt)
