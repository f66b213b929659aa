"""An array held in a narrow format: packed codes and scales."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fewbits import kernels
from fewbits.formats import Bdr, Element, Format
from fewbits.kernels.reference import Parts, pack, unpack

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
        values, close = self.parts(), self.like
        return close(kernels.dequantize(values, self.format, self.shape, self.axis, np.float64))

    def parts(self) -> Parts:
        """Return codes and scales unpacked, one integer each, the block axis last."""
        shape = _moved(self.shape, self.axis)
        if isinstance(self.format, Element):
            return Parts(unpack(self.codes, self.format.bits, shape))
        fmt: Any = self.format
        assert self.scales is not None
        scales = unpack(self.scales, fmt.scale.bits, _scales_shape(shape, fmt.size))
        shifts = None
        if isinstance(fmt, Bdr) and self.shifts is not None:
            shifts = unpack(self.shifts, fmt.d2, _scales_shape(shape, fmt.k2))
        return Parts(unpack(self.codes, fmt.element.bits, shape), scales, shifts, self.outer)

    def __repr__(self) -> str:
        return f"NarrowTensor({self.format}, shape={self.shape}, axis={self.axis}, {self.nbytes} bytes)"


def packed(parts: Parts, fmt: Any, shape: tuple[int, ...], axis: int, like: Any) -> NarrowTensor:
    """Return a NarrowTensor of the codes and scales of :func:`fewbits.kernels.quantize`."""
    element = fmt if isinstance(fmt, Element) else fmt.element
    return NarrowTensor(
        format=fmt,
        shape=shape,
        axis=axis,
        codes=pack(parts.codes, element.bits),
        scales=None if parts.scales is None else pack(parts.scales, fmt.scale.bits),
        shifts=None if parts.shifts is None else pack(parts.shifts, fmt.d2),
        outer=parts.outer,
        like=like,
    )


def _moved(shape: tuple[int, ...], axis: int) -> tuple[int, ...]:
    return (*shape[:axis], *shape[axis + 1 :], shape[axis]) if shape else (1,)


def _scales_shape(shape: tuple[int, ...], size: int | str) -> tuple[int, ...]:
    if size == "tensor":
        return (1,) * len(shape)
    return (*shape[:-1], 1 if isinstance(size, str) else -(-shape[-1] // size))
