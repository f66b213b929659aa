"""Powers of two: E8M0, the scale of every MX format."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

from fewbits.errors import FormatError
from fewbits.formats.elements.bias import IEEE_BIAS
from fewbits.formats.format import Element, integer


@dataclass(frozen=True, repr=False)
class Exponent(Element):
    """A power of two: the code minus the bias is the exponent, and the code of all ones is NaN.

    ``exponent(8,bias=127)`` is E8M0, the scale of OCP MX (v1.0, section 5.4.1): no sign, zero or infinity.
    """

    bits: int = field(metadata={"key": ""})
    bias: int = IEEE_BIAS  # 2^(bits-1) - 1 unless given

    kind: ClassVar[str] = "exponent"
    power_of_two: ClassVar[bool] = True
    mantissa_bits: ClassVar[int] = 0
    default_overflow: ClassVar[str] = "nan"  # as the hardware conversion to E8M0 does

    def __post_init__(self) -> None:
        integer(self, "bits", "exponent: bits", 2, 8)
        if self.bias == IEEE_BIAS:
            object.__setattr__(self, "bias", 2 ** (self.bits - 1) - 1)
        integer(self, "bias", "exponent: bias", 0, 127)
        if self.emax > 127:
            raise FormatError(f"exponent: bias={self.bias} reaches 2^{self.emax}; float32 ends at 2^127")

    @property
    def nan_code(self) -> int:
        """All ones."""
        return (1 << self.bits) - 1

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
        """Smallest value; the format has no zero."""
        return 2.0**self.emin

    smallest_normal = min
    smallest_subnormal = min
