"""Posits: a sign, a run of equal bits that scales, exponent bits, a fraction."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

from fewbits.formats.format import Element, integer


@dataclass(frozen=True, repr=False)
class Posit(Element):
    """Sign, regime, ``es`` exponent bits, fraction (Standard for Posit Arithmetic, 2022, sections 3 and 4).

    Zero is 0...0 and NaR (not a real; shown as NaN) is 10...0. Negative codes are two's complements. A
    nonzero value never rounds to NaR, nor to zero by a nearest mode: it saturates at the extreme posits.
    """

    bits: int = field(metadata={"key": ""})
    es: int = 2

    kind: ClassVar[str] = "posit"
    reals_only: ClassVar[bool] = True

    def __post_init__(self) -> None:
        integer(self, "bits", "posit: bits", 3, 16)
        integer(self, "es", "posit: es", 0, 3)

    @property
    def nan_code(self) -> int:
        """NaR, a one and zeros."""
        return 1 << (self.bits - 1)

    @property
    def emin(self) -> int:
        """Exponent of the smallest positive value."""
        return -self.emax

    @property
    def emax(self) -> int:
        """Exponent of the largest value, 2^es (n - 2)."""
        return (self.bits - 2) << self.es

    @property
    def max(self) -> float:
        """Largest value, maxpos."""
        return 2.0**self.emax

    @property
    def min(self) -> float:
        """Most negative value."""
        return -self.max

    @property
    def smallest_normal(self) -> float:
        """Smallest positive value, minpos: posits have no subnormals."""
        return 2.0**-self.emax

    smallest_subnormal = smallest_normal
