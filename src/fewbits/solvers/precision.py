"""Which part of a solution is held in which format, as data."""

from __future__ import annotations

from dataclasses import dataclass
from difflib import get_close_matches

from fewbits.errors import ArgumentError, FormatError
from fewbits.tensor import format

# What one operand of a product loses at most: of itself; for int8, of the largest in its row or column.
ROUNDOFF = {
    "fp64": 2.0**-53,
    "fp32": 2.0**-24,
    "tf32": 2.0**-11,
    "fp16": 2.0**-11,
    "bf16": 2.0**-9,
    "bf16x2": 2.0**-17,
    "bf16x3": 2.0**-24,
    "int8x2": 2.0**-15,
    "int8x3": 2.0**-22,
}
FACTORS = tuple(ROUNDOFF)
REFINEMENTS = ("none", "classical", "gmres", "classical-gmres")
ASSUMPTIONS = ("general", "positive definite")


@dataclass(frozen=True)
class Precision:
    """How a dense system is solved.

    ``factor`` is what the operands of the trailing updates of the LU factorization are rounded to, with sums
    and everything else in float32: ``bf16x2`` and ``bf16x3`` split a float32 into two or three bfloat16
    terms, ``int8x2`` and ``int8x3`` the rows of one operand and the columns of the other into 8-bit integers
    with a power of two for each, whose products are exact; ``fp32`` and ``fp64`` are LAPACK's own
    factorizations. Residuals and solution are float64. ``refinement`` is classical (Wilkinson; LAPACK's
    DSGESV), by GMRES with the factors as preconditioner (Carson and Higham, Accelerating the Solution of
    Linear Systems by Iterative Refinement in Three Precisions, 2018), or classical as long as each step takes
    a digit off the residual and GMRES from there.
    """

    name: str
    factor: str
    refinement: str

    def __post_init__(self) -> None:
        """Refuse what does not exist."""
        for what, given, allowed in (
            ("factor", self.factor, FACTORS),
            ("refinement", self.refinement, REFINEMENTS),
        ):
            if given not in allowed:
                raise ArgumentError(f"{what}={given!r} of a precision; expected one of {', '.join(allowed)}")


PRECISIONS: dict[str, Precision] = {
    p.name: p
    for p in (
        Precision("fp64", "fp64", "none"),
        Precision("dsgesv", "fp32", "classical"),
        *(Precision(factor, factor, "classical-gmres") for factor in FACTORS[1:]),
        *(Precision(f"{factor}-classical", factor, "classical") for factor in FACTORS[1:]),
    )
}


def precision(text: str | Precision) -> Precision:
    """Return the precision that ``text`` names; one is returned as it is.

    Raises:
        ArgumentError: there is none of that name.
    """
    if isinstance(text, Precision):
        return text
    if text not in PRECISIONS:
        near = get_close_matches(text, PRECISIONS, n=3)
        hint = f"; the nearest are {', '.join(near)}" if near else ""
        raise ArgumentError(
            f"there is no precision {text!r}{hint}; expected auto or one of {', '.join(PRECISIONS)}"
        )
    return PRECISIONS[text]


@dataclass(frozen=True)
class KrylovPrecision:
    """How a Krylov solver holds its parts.

    ``matrix`` and ``vectors`` are formats; arithmetic is ``accumulation``, float32 or float64, sums over
    vectors are float64, and so are the residual that decides and the solution. ``fp64`` is for both or for
    none: with it nothing is rounded.
    """

    name: str
    matrix: str
    vectors: str

    def __post_init__(self) -> None:
        """Refuse what does not exist."""
        for fmt in (self.matrix, self.vectors):
            if fmt != "fp64":
                format(fmt)
        if (self.matrix == "fp64") != (self.vectors == "fp64"):
            raise ArgumentError(
                f"matrix={self.matrix}, vectors={self.vectors}: fp64 is for both or for none; fp64 for both,"
                " or fp32 in its place"
            )

    @property
    def accumulation(self) -> str:
        """The format of the arithmetic between two roundings."""
        return "fp64" if self.matrix == "fp64" else "fp32"

    @property
    def double(self) -> bool:
        """Whether nothing is narrow."""
        return self.matrix == "fp64"


_SCALED = "block(element=fp16,scale=e8m0,size=tensor)"  # one power of two for a vector
_SITE = "block(element=int(16,coding=symmetric),scale=fp32,size=32)"  # QUDA's, with 32 values to a site

KRYLOV_PRECISIONS: dict[str, KrylovPrecision] = {
    p.name: p
    for p in (
        KrylovPrecision("double", "fp64", "fp64"),
        KrylovPrecision("single", "fp32", "fp32"),
        KrylovPrecision("half", "quda_half", "quda_half"),  # QUDA's names for its 16 and 8 bits
        KrylovPrecision("quarter", "quda_quarter", "quda_quarter"),
        KrylovPrecision("scaled-fp16", _SCALED, _SCALED),
        KrylovPrecision("site-int16", _SITE, _SITE),
    )
}


def krylov_precision(text: str | KrylovPrecision) -> KrylovPrecision:
    """Return the precision that ``text`` says; one is returned as it is.

    A name of :data:`KRYLOV_PRECISIONS`, a format for matrix and vectors, or two of either,
    ``MATRIX/VECTORS``: ``fp32/scaled-fp16`` keeps the matrix in float32.

    Raises:
        ArgumentError: neither a precision nor a format.
    """
    if isinstance(text, KrylovPrecision):
        return text
    if text in KRYLOV_PRECISIONS:
        return KRYLOV_PRECISIONS[text]
    first, _, second = text.partition("/")
    matrix, vectors = (
        KRYLOV_PRECISIONS[part].matrix if part in KRYLOV_PRECISIONS else part
        for part in (first, second or first)
    )
    try:
        return KrylovPrecision(text, matrix, vectors)
    except FormatError as error:
        raise ArgumentError(
            f"there is no precision {text!r}; expected auto, one of {', '.join(KRYLOV_PRECISIONS)}, a format,"
            f" or MATRIX/VECTORS: {error}"
        ) from error
