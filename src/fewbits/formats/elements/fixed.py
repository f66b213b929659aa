"""Integers and fixed point: INT8, INT4, and the elements of MXINT8, MSFP and BDR."""

from __future__ import annotations

from dataclasses import dataclass, field

from fewbits.errors import FormatError
from fewbits.formats.format import Element, ValueGrid, integer

CODINGS = ("twos_complement", "symmetric", "sign_magnitude", "unsigned")


@dataclass(frozen=True, repr=False)
class Fixed(Element):
    """An integer times 2^-frac; ``int(b)`` is ``fixed(b,frac=0)``.

    ``coding`` is ``twos_complement``, ``symmetric`` (two's complement whose most negative code is not used;
    OCP MX v1.0, section 5.3.4 allows it for INT8), ``sign_magnitude`` (as in MSFP and BDR) or ``unsigned``.
    """

    bits: int = field(metadata={"key": ""})
    frac: int = 0  # bits behind the binary point
    coding: str = "twos_complement"

    def __post_init__(self) -> None:
        integer(self, "bits", "fixed: bits", 1, 24)
        integer(self, "frac", "fixed: frac", -64, 64)
        if self.coding not in CODINGS:
            raise FormatError(f"fixed: coding={self.coding} is not one of {', '.join(CODINGS)}")
        if self.bits < 2 and self.coding != "unsigned":
            raise FormatError(f"fixed: {self.coding} needs at least 2 bits; for one bit use lookup(1,-1)")

    @property
    def kind(self) -> str:
        """``int`` without a binary point, else ``fixed``."""
        return "fixed" if self.frac else "int"

    @property
    def steps(self) -> int:
        """Largest value in units of 2^-frac."""
        return (1 << (self.bits - (self.coding != "unsigned"))) - 1

    @property
    def grid(self) -> ValueGrid:
        """Equal steps: all values lie in or below the top binade."""
        sign = {"unsigned": "none", "sign_magnitude": "bit"}.get(self.coding, "twos_complement")
        return ValueGrid(self.emax, self.mantissa_bits, sign)

    @property
    def emin(self) -> int:
        """Exponent of the smallest positive value."""
        return -self.frac

    @property
    def emax(self) -> int:
        """Exponent of the largest value."""
        return self.steps.bit_length() - 1 - self.frac

    @property
    def mantissa_bits(self) -> int:
        """Bits behind the leading one in the top binade."""
        return self.steps.bit_length() - 1

    @property
    def max(self) -> float:
        """Largest value."""
        return self.steps * 2.0**-self.frac

    @property
    def min(self) -> float:
        """Most negative value, or zero."""
        low = {"unsigned": 0, "twos_complement": -self.steps - 1}.get(self.coding, -self.steps)
        return low * 2.0**-self.frac

    @property
    def smallest_normal(self) -> float:
        """Smallest positive value."""
        return 2.0**-self.frac

    smallest_subnormal = smallest_normal

    @property
    def signed_zero(self) -> bool:
        """Whether minus zero has a code."""
        return self.coding == "sign_magnitude"

    def _finest_facts(self) -> list[tuple[str, str]]:
        return [("step", f"{self.smallest_normal:.9g}"), ("coding", self.coding.replace("_", " "))]
