"""Element formats: what the bits of one value mean.

Each format is a frozen record. Its fields are the whole truth about it; everything else is derived from them
with exact integer arithmetic. Values are exact in float64 for every format that can be written here.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from math import frexp
from typing import TYPE_CHECKING, ClassVar

from fewbits.errors import FormatError
from fewbits.formats.format import Format, integer

SPECIALS = ("none", "fn", "fnuz", "ieee")
_IEEE_BIAS = -(2**15)  # stands for 2^(bits - 1) - 1, as in IEEE 754; no bias is so low
CODINGS = ("twos_complement", "symmetric", "sign_magnitude", "unsigned")


class Element(Format):
    """A format whose every value stands alone: no scale is shared."""

    if TYPE_CHECKING:  # each is a field, a constant or a property of the format that defines it

        @property
        def bits(self) -> int:
            """Width of one code."""

        @property
        def max(self) -> float:
            """Largest finite value."""

        @property
        def min(self) -> float:
            """Most negative finite value."""

        @property
        def smallest_normal(self) -> float:
            """Smallest positive value with a full mantissa."""

        @property
        def smallest_subnormal(self) -> float:
            """Smallest positive value."""

        @property
        def emax(self) -> int:
            """Exponent of the largest finite value."""

        @property
        def has_nan(self) -> bool:
            """Whether a code is NaN."""

        @property
        def has_inf(self) -> bool:
            """Whether codes are infinities."""

        @property
        def signed_zero(self) -> bool:
            """Whether minus zero has a code."""

    @property
    def bits_per_value(self) -> float:
        """Bits of storage for one value."""
        return float(self.bits)

    @property
    def default_overflow(self) -> str:
        """Infinity where the format has one (IEEE 754-2019, section 7.4), else the largest value."""
        return "inf" if self.has_inf else "saturate"

    @property
    def default_nonfinite(self) -> str:
        """Keep NaN where it can be coded; where it cannot, refuse it rather than invent a number."""
        return "element" if self.has_nan else "raise"


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
    bias: int = _IEEE_BIAS  # subtracted from the exponent field; 2^(e-1) - 1 unless given
    special: str = "none"  # which codes are not numbers

    kind: ClassVar[str] = "float"

    def __post_init__(self) -> None:
        integer("float: e", self.exponent_bits, 1, 8)
        integer("float: m", self.mantissa_bits, 0, 23)
        if self.bias == _IEEE_BIAS:
            object.__setattr__(self, "bias", 2 ** (self.exponent_bits - 1) - 1)
        integer("float: bias", self.bias, -150, 300)
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
    def has_nan(self) -> bool:
        """Whether a code is NaN."""
        return self.special != "none"

    @property
    def has_inf(self) -> bool:
        """Whether two codes are infinities."""
        return self.special == "ieee"

    @property
    def signed_zero(self) -> bool:
        """Whether minus zero has a code."""
        return self.special != "fnuz"


@dataclass(frozen=True, repr=False)
class Fixed(Element):
    """An integer times 2^-frac; ``int(b)`` is ``fixed(b,frac=0)``.

    ``coding`` is ``twos_complement``, ``symmetric`` (two's complement whose most negative code is not used;
    OCP MX v1.0, section 5.3.4 allows it for INT8), ``sign_magnitude`` (as in MSFP and BDR) or ``unsigned``.
    """

    bits: int = field(metadata={"key": ""})
    frac: int = 0  # bits behind the binary point
    coding: str = "twos_complement"

    has_nan: ClassVar[bool] = False
    has_inf: ClassVar[bool] = False

    def __post_init__(self) -> None:
        integer("fixed: bits", self.bits, 1, 24)
        integer("fixed: frac", self.frac, -64, 64)
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


@dataclass(frozen=True, repr=False)
class Posit(Element):
    """Sign, regime, ``es`` exponent bits, fraction (Standard for Posit Arithmetic, 2022, sections 3 and 4).

    Zero is 0...0 and NaR (not a real; shown as NaN) is 10...0. Negative codes are two's complements. A
    nonzero value never rounds to NaR, nor to zero by a nearest mode: it saturates at the extreme posits.
    """

    bits: int = field(metadata={"key": ""})
    es: int = 2

    kind: ClassVar[str] = "posit"
    has_nan: ClassVar[bool] = True
    has_inf: ClassVar[bool] = False
    signed_zero: ClassVar[bool] = False

    def __post_init__(self) -> None:
        integer("posit: bits", self.bits, 3, 16)
        integer("posit: es", self.es, 0, 3)

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


@dataclass(frozen=True, repr=False)
class Lookup(Element):
    """A list of values; the code is the position in the list.

    A tie between two values rounds to the upper one if its code is even, else to the lower one.
    """

    values: tuple[float, ...] = field(metadata={"key": "*"})

    kind: ClassVar[str] = "lookup"
    has_nan: ClassVar[bool] = False
    has_inf: ClassVar[bool] = False
    signed_zero: ClassVar[bool] = False

    def __post_init__(self) -> None:
        values = tuple(float(v) + 0.0 for v in self.values)  # one zero: the sign of -0.0 is dropped
        object.__setattr__(self, "values", values)
        if not 2 <= len(values) <= 65536 or len(set(values)) != len(values):
            raise FormatError(f"lookup: {len(values)} values; give 2 to 65536 different ones")
        if not all(abs(v) < 2.0**128 for v in values) or max(values) <= 0:
            raise FormatError("lookup: every value must be within float32's range and the largest above zero")

    @property
    def bits(self) -> int:
        """Width of one code."""
        return (len(self.values) - 1).bit_length()

    @property
    def max(self) -> float:
        """Largest value."""
        return max(self.values)

    @property
    def min(self) -> float:
        """Most negative value."""
        return min(self.values)

    @property
    def emax(self) -> int:
        """Exponent of the largest value."""
        return exponent_of(self.max)

    @property
    def smallest_normal(self) -> float:
        """Smallest magnitude above zero."""
        return min(abs(v) for v in self.values if v)

    smallest_subnormal = smallest_normal


@dataclass(frozen=True, repr=False)
class Exponent(Element):
    """A power of two: the code minus the bias is the exponent, and the code of all ones is NaN.

    ``exponent(8,bias=127)`` is E8M0, the scale of OCP MX (v1.0, section 5.4.1): no sign, zero or infinity.
    """

    bits: int = field(metadata={"key": ""})
    bias: int = _IEEE_BIAS  # 2^(bits-1) - 1 unless given

    kind: ClassVar[str] = "exponent"
    has_nan: ClassVar[bool] = True
    has_inf: ClassVar[bool] = False
    signed_zero: ClassVar[bool] = False
    mantissa_bits: ClassVar[int] = 0
    default_overflow: ClassVar[str] = "nan"  # as the hardware conversion to E8M0 does

    def __post_init__(self) -> None:
        integer("exponent: bits", self.bits, 2, 8)
        if self.bias == _IEEE_BIAS:
            object.__setattr__(self, "bias", 2 ** (self.bits - 1) - 1)
        integer("exponent: bias", self.bias, 0, 127)
        if self.emax > 127:
            raise FormatError(f"exponent: bias={self.bias} reaches 2^{self.emax}; float32 ends at 2^127")

    @property
    def emin(self) -> int:
        """Smallest exponent."""
        return -self.bias

    @property
    def emax(self) -> int:
        """Largest exponent."""
        return (1 << self.bits) - 2 - self.bias

    @property
    def max(self) -> float:
        """Largest value."""
        return 2.0**self.emax

    @property
    def min(self) -> float:
        """Smallest value: there is nothing below it, not even zero."""
        return 2.0**self.emin

    smallest_normal = min
    smallest_subnormal = min


def exponent_of(value: float) -> int:
    """Floor of log2 of a positive float, from its bits."""
    return frexp(value)[1] - 1
