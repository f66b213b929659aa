"""An array held in a narrow format: packed codes and scales."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fewbits import kernels
from fewbits.formats import Format
from fewbits.kernels.layout import Packed, unpacked
from fewbits.kernels.reference import Parts

Bytes = NDArray[np.uint8]


@dataclass(frozen=True, eq=False, repr=False)
class NarrowTensor:
    """Codes and scales in packed bits, and what is needed to read them.

    Codes lie in C order with the block axis last, as a little-endian bit stream (two FP4 codes to a byte, the
    first in the low half); scales and microexponents likewise.
    """

    format: Format
    shape: tuple[int, ...]
    axis: int  # along which blocks lie, counted from the front
    codes: Bytes
    scales: Bytes | None
    shifts: Bytes | None  # BDR microexponents
    outer: NDArray[np.float32] | None
    like: Any  # the result of dequantize has its family, dtype and device

    @property
    def nbytes(self) -> int:
        """Bytes of codes and scales together."""
        return sum(p.nbytes for p in (self.codes, self.scales, self.shifts, self.outer) if p is not None)

    def dequantize(self) -> Any:
        """Return the values, exactly, in the family, dtype and device of the array that was quantized."""
        return self.like(kernels.dequantize(self._packed(), self.format, self.shape, self.axis, np.float64))

    def parts(self) -> Parts:
        """Return codes and scales unpacked, one integer each, the block axis last."""
        return unpacked(self._packed(), self.format, self.shape, self.axis)

    def _packed(self) -> Packed:
        return Packed(self.codes, self.scales, self.shifts, self.outer)

    def __repr__(self) -> str:
        return f"NarrowTensor({self.format}, shape={self.shape}, axis={self.axis}, {self.nbytes} bytes)"
