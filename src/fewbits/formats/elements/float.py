"""Floating point: sign, exponent, mantissa; FP32, FP16, BF16, FP8, FP6, FP4."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

from fewbits.errors import FormatError
from fewbits.formats.elements.bias import IEEE_BIAS
from fewbits.formats.format import Element, ValueGrid, integer

SPECIALS = ("none", "fn", "fnuz", "ieee")


@dataclass(frozen=True, repr=False)
class Float(Element):
    """Sign, exponent, mantissa, with subnormals.

    ``special`` says which codes are not numbers:
    ``none`` every code is a number (OCP MX v1.0, section 5.3.2 and 5.3.3: FP6, FP4);
    ``fn`` only S.1...1.1...1 is NaN and there is no infinity (OCP OFP8 v1.0: E4M3);
    ``fnuz`` the code of minus zero is the only NaN, there is no infinity and no minus zero;
    ``ieee`` the largest exponent codes infinity and NaN (IEEE 754-2019, section 3.4).
    """

    exponent_bits: int = field(metadata={"key": "e"})  # width of the exponent field
    mantissa_bits: int = field(metadata={"key": "m"})  # stored fraction bits, without the implicit one
    bias: int = IEEE_BIAS  # subtracted from the exponent field; 2^(e-1) - 1 unless given
    special: str = "none"  # which codes are not numbers

    kind: ClassVar[str] = "float"

    def __post_init__(self) -> None:
        integer(self, "exponent_bits", "float: e", 1, 8)
        integer(self, "mantissa_bits", "float: m", 0, 23)
        if self.bias == IEEE_BIAS:
            object.__setattr__(self, "bias", 2 ** (self.exponent_bits - 1) - 1)
        integer(self, "bias", "float: bias", -150, 300)
        if self.special not in SPECIALS:
            raise FormatError(f"float: special={self.special} is not one of {', '.join(SPECIALS)}")
        if self.special == "ieee" and (self.exponent_bits < 2 or self.mantissa_bits < 1):
            raise FormatError(
                "float: special=ieee needs e >= 2 and m >= 1 to hold infinity, NaN and a number"
            )
        if self.special == "fn" and self.exponent_bits + self.mantissa_bits < 2:
            raise FormatError("float: special=fn with e=1, m=0 leaves no number but zero; use m >= 1")
        if self.emax > 127 or self.emin - self.mantissa_bits < -149:
            raise FormatError(
                f"float: e={self.exponent_bits}, m={self.mantissa_bits}, bias={self.bias} spans 2^"
                f"{self.emin - self.mantissa_bits} to 2^{self.emax}; a value must be exact in float32 "
                "(2^-149 to 2^127): change the bias or use fewer bits"
            )

    @property
    def bits(self) -> int:
        """Width of one code."""
        return 1 + self.exponent_bits + self.mantissa_bits

    @property
    def emin(self) -> int:
        """Exponent of the smallest normal value."""
        return 1 - self.bias

    @property
    def emax(self) -> int:
        """Exponent of the largest finite value."""
        reserved = self.special == "ieee" or (self.special == "fn" and self.mantissa_bits == 0)
        return (1 << self.exponent_bits) - 1 - reserved - self.bias

    @property
    def max(self) -> float:
        """Largest finite value."""
        lost = 2 if self.special == "fn" and self.mantissa_bits > 0 else 1
        return (2.0 - lost * 2.0**-self.mantissa_bits) * 2.0**self.emax

    @property
    def min(self) -> float:
        """Most negative finite value."""
        return -self.max

    @property
    def smallest_normal(self) -> float:
        """Smallest positive value with a full mantissa."""
        return 2.0**self.emin

    @property
    def smallest_subnormal(self) -> float:
        """Smallest positive value."""
        return 2.0 ** (self.emin - self.mantissa_bits)

    @property
    def grid(self) -> ValueGrid:
        """Subnormals below emin, a sign bit."""
        return ValueGrid(self.emin, self.mantissa_bits, "bit")

    @property
    def nan_code(self) -> int | None:
        """The code of NaN, the quiet positive one if there are several; None if there is none."""
        if self.inf_code is not None:
            return self.inf_code | 1 << (self.mantissa_bits - 1)
        return {"fn": (1 << (self.bits - 1)) - 1, "fnuz": 1 << (self.bits - 1)}.get(self.special)

    @property
    def inf_code(self) -> int | None:
        """The code of plus infinity; None if there is none."""
        return ((1 << self.exponent_bits) - 1) << self.mantissa_bits if self.special == "ieee" else None

    @property
    def signed_zero(self) -> bool:
        """Whether minus zero has a code."""
        return self.special != "fnuz"

    def _finest_facts(self) -> list[tuple[str, str]]:
        not_numbers = {
            "none": "none",
            "fn": "one NaN",
            "fnuz": "one NaN (the code of -0)",
            "ieee": "infinities and NaN",
        }
        rows = [("bias", str(self.bias)), ("smallest normal", f"{self.smallest_normal:.9g}")]
        if self.mantissa_bits:
            rows.append(("smallest subnormal", f"{self.smallest_subnormal:.9g}"))
        return [*rows, ("not numbers", not_numbers[self.special])]
