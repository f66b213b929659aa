"""Precisions as data: the format of each part of a solver."""

from __future__ import annotations

from dataclasses import dataclass, replace
from difflib import get_close_matches
from functools import cache

import torch

from fewbits.errors import ArgumentError, FormatError
from fewbits.formats import SCALED_FP16, SITE_INT16, Format, split
from fewbits.tensor import fake_quantize, format

# Unit roundoff of one operand of a product: relative to the operand; for int8, to the largest value in its
# row or column.
_ROUNDOFF = {
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
FACTORS = tuple(_ROUNDOFF)
REFINEMENTS = ("none", "classical", "gmres", "classical_gmres")
ASSUMPTIONS = ("gen", "pos")


@dataclass(frozen=True)
class Precision:
    """How a dense system is solved.

    Attributes:
        name: shown in reports.
        factor: the format of the operands in the trailing updates of the factorization; sums are float32.
            ``bf16x2`` and ``bf16x3`` split a float32 into two or three bfloat16 terms. ``int8x2`` and
            ``int8x3`` split it into two or three 8-bit integers, with a power of two for each row of one
            operand and each column of the other; their products are exact. ``fp64`` is LAPACK's
            own factorization. Any other format is emulated, with blocks along the axis that is summed over.
        refinement: ``classical`` (Wilkinson; LAPACK's DSGESV), ``gmres`` with the factors as preconditioner
            (Carson and Higham, Accelerating the Solution of Linear Systems by Iterative Refinement in Three
            Precisions, 2018), ``classical_gmres``: classical while each step reduces the residual tenfold,
            then GMRES; or ``none``, for factors in double precision.
        working: precision of the triangular solves in classical refinement: fp64, which reads real float32
            factors without a copy, or fp32. In GMRES they are always fp64, because rounding blurs the few
            directions that decide its convergence.
        residual: fp64; with a narrower residual, refinement would not reach double precision.
        solution: fp64, for the same reason.
    """

    name: str
    factor: str
    refinement: str = "classical_gmres"
    working: str = "fp64"
    residual: str = "fp64"
    solution: str = "fp64"

    def __post_init__(self) -> None:
        """Raise ArgumentError or FormatError if a value does not exist."""
        for role, allowed in (
            ("refinement", REFINEMENTS),
            ("working", ("fp64", "fp32")),
            ("residual", ("fp64",)),
            ("solution", ("fp64",)),
        ):
            if getattr(self, role) not in allowed:
                raise ArgumentError(
                    f"{role}={getattr(self, role)!r} of a precision; expected one of {', '.join(allowed)}"
                )
        if (self.factor == "fp64") != (self.refinement == "none"):
            raise ArgumentError(
                f"factor={self.factor}, refinement={self.refinement}: factors in double precision, and they"
                " alone, are not refined; refinement=none with factor=fp64"
            )
        if self.factor not in FACTORS:
            try:
                format(self.factor)
            except FormatError as error:
                raise ArgumentError(
                    f"factor={self.factor!r} of a precision; expected one of {', '.join(FACTORS)}, or a"
                    f" format: {error}"
                ) from error


PRECISIONS: dict[str, Precision] = {
    p.name: p
    for p in (
        Precision("fp64", "fp64", "none"),
        Precision("dsgesv", "fp32", "classical", "fp32"),
        *(Precision(factor, factor) for factor in FACTORS[1:]),
        *(Precision(f"{factor}_classical", factor, "classical") for factor in FACTORS[1:]),
    )
}
_ROLES = ("factor", "refinement", "working", "residual", "solution")


def precision(text: str | Precision) -> Precision:
    """Return the precision that ``text`` names; a Precision is returned unchanged.

    A name of :data:`PRECISIONS`, a format for the factors, or either with roles that differ:
    ``NAME:ROLE=VALUE,...``, as in ``bf16x2:refinement=gmres`` or ``mxfp8:working=fp32``.

    Raises:
        ArgumentError: text is neither a precision nor a format, or has an unknown role or value, or one
            twice.
    """
    if isinstance(text, Precision):
        return text
    if not isinstance(text, str):
        raise ArgumentError(f"precision={text!r}; expected a name or a Precision")
    name, colon, rest = text.partition(":")
    name = name.strip()  # ' fp32' would be a format, which is emulated
    changes: dict[str, str] = {}
    for part in split(rest) if colon else ():
        role, _, value = (p.strip() for p in part.partition("="))
        if role not in _ROLES or not value:
            raise ArgumentError(
                f"{part!r} in precision {text!r}; expected ROLE=VALUE with a role of {', '.join(_ROLES)}"
            )
        if role in changes:
            raise ArgumentError(f"precision {text!r} gives {role} twice; expected each role once")
        changes[role] = value
    if name in PRECISIONS:
        return replace(PRECISIONS[name], name=text, **changes)
    try:
        format(name)
    except FormatError as error:
        near = get_close_matches(name, PRECISIONS, n=3)
        hint = f"; the nearest are {', '.join(near)}" if near else ""
        raise ArgumentError(
            f"there is no precision {text!r}{hint}; expected auto, one of {', '.join(PRECISIONS)}, or a"
            f" format: {error}"
        ) from error
    return Precision(text, **{"factor": name, **changes})


def roundoff(factor: str) -> float:
    """Return the unit roundoff of ``factor``; for a format, its mean relative error."""
    return _ROUNDOFF[factor] if factor in _ROUNDOFF else mean_error(format(factor))


@cache
def mean_error(format: Format) -> float:
    """Return the relative error of rounding a random vector to ``format``."""
    v = torch.randn(4096, generator=torch.Generator().manual_seed(0))
    return float(torch.linalg.vector_norm(fake_quantize(v, format) - v) / torch.linalg.vector_norm(v))


@dataclass(frozen=True)
class KrylovPrecision:
    """The formats of a Krylov solver.

    ``matrix`` and ``vectors`` are formats. Arithmetic is in ``accumulation``, float32 or float64; dot
    products, the true residual and the solution are float64. ``fp64`` must be given for both or for neither;
    with it nothing is rounded.
    """

    name: str
    matrix: str
    vectors: str

    def __post_init__(self) -> None:
        """Raise ArgumentError or FormatError if a value does not exist."""
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
        """Whether all parts are double precision."""
        return self.matrix == "fp64"


_SCALED, _SITE = SCALED_FP16.grammar, SITE_INT16.grammar

KRYLOV_PRECISIONS: dict[str, KrylovPrecision] = {
    p.name: p
    for p in (
        KrylovPrecision("double", "fp64", "fp64"),
        KrylovPrecision("single", "fp32", "fp32"),
        KrylovPrecision("half", "quda_half", "quda_half"),  # QUDA's names for its 16 and 8 bits
        KrylovPrecision("quarter", "quda_quarter", "quda_quarter"),
        KrylovPrecision("scaled_fp16", _SCALED, _SCALED),
        KrylovPrecision("site_int16", _SITE, _SITE),
    )
}


def krylov_precision(text: str | KrylovPrecision) -> KrylovPrecision:
    """Return the Krylov precision that ``text`` names; a KrylovPrecision is returned unchanged.

    A name of :data:`KRYLOV_PRECISIONS`, a format for matrix and vectors, or two of either,
    ``MATRIX/VECTORS``: ``fp32/scaled_fp16`` keeps the matrix in float32.

    Raises:
        ArgumentError: text is neither a precision nor a format.
    """
    if isinstance(text, KrylovPrecision):
        return text
    if not isinstance(text, str):
        raise ArgumentError(f"precision={text!r}; expected a name or a KrylovPrecision")
    if text in KRYLOV_PRECISIONS:
        return KRYLOV_PRECISIONS[text]
    first, slash, second = (part.strip() for part in text.partition("/"))
    matrix, vectors = (
        KRYLOV_PRECISIONS[part].matrix if part in KRYLOV_PRECISIONS else part
        for part in (first, second if slash else first)
    )
    try:
        return KrylovPrecision(text, matrix, vectors)
    except FormatError as error:
        raise ArgumentError(
            f"there is no precision {text!r}; expected auto, one of {', '.join(KRYLOV_PRECISIONS)}, a format,"
            f" or MATRIX/VECTORS: {error}"
        ) from error
