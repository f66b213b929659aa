"""The order of numbers in ONNX, row by row without gaps, and that of docs/layout.md, blocks along lines."""

from __future__ import annotations

from dataclasses import dataclass, field
from io import BufferedReader
from math import prod

import numpy as np
from numpy.typing import NDArray

from fewbits.files.checkpoint import StoredTensor
from fewbits.kernels.bits.packing import line_bytes, pack, unpack

Octets = NDArray[np.uint8]


def stream(codes: Octets, bits: int) -> Octets:
    """Pack codes, one in each byte, without gaps; the last byte is filled with zeros."""
    if bits not in (2, 4):
        return pack(codes, bits)
    each = 8 // bits
    padded = np.zeros(-(-len(codes) // each) * each, np.uint8)
    padded[: len(codes)] = codes
    shifted = padded.reshape(-1, each) << np.arange(0, 8, bits, dtype=np.uint8)
    together: Octets = np.bitwise_or.reduce(shifted, axis=-1)
    return together


def _codes(lines: Octets, bits: int, count: int) -> Octets:
    """Return the codes of (lines, bytes), one in each byte."""
    if bits not in (2, 4):
        return unpack(lines, bits, count).astype(np.uint8, copy=False)
    spread = (lines[..., None] >> np.arange(0, 8, bits, dtype=np.uint8)) & np.uint8((1 << bits) - 1)
    return spread.reshape(len(lines), -1)[:, :count]


@dataclass(frozen=True)
class Order:
    """A part as an array of ``shape`` in ONNX; in docs/layout.md its lines run along ``axis``."""

    shape: tuple[int, ...]
    axis: int
    bits: int  # of an item; 8, 16 and 32 are whole bytes

    @property
    def row(self) -> int:
        """Items of a line."""
        return self.shape[self.axis] if self.shape else 1

    @property
    def line_bytes(self) -> int:
        """Bytes of a line in docs/layout.md."""
        return int(line_bytes(self.row, self.bits))

    @property
    def nbytes(self) -> int:
        """Bytes of all lines."""
        return prod(self.shape) // max(self.row, 1) * self.line_bytes

    @property
    def is_same(self) -> bool:
        """Whether both orders have the same bytes."""
        last = self.axis == len(self.shape) - 1 or not self.shape
        return last and self.row * self.bits % 8 == 0

    def to_onnx(self, octets: bytes | bytearray) -> bytes:
        """Turn all lines into ONNX's order."""
        if self.is_same:
            return bytes(octets)
        lines = np.frombuffer(octets, np.uint8).reshape(-1, self.line_bytes)
        others = (*self.shape[: self.axis], *self.shape[self.axis + 1 :])
        if self.bits >= 8:
            items = lines.reshape(*others, self.row, self.bits // 8)
            return np.ascontiguousarray(np.moveaxis(items, -2, self.axis)).tobytes()
        codes = _codes(lines, self.bits, self.row).reshape(*others, self.row)
        return stream(np.moveaxis(codes, -1, self.axis).reshape(-1), self.bits).tobytes()

    def from_onnx(self, octets: bytes | bytearray) -> bytes:
        """Turn an array in ONNX's order into lines."""
        stored = np.frombuffer(octets, np.uint8)
        if self.bits >= 8:
            items = stored.reshape(*self.shape, self.bits // 8)
            return np.ascontiguousarray(np.moveaxis(items, self.axis, -2)).tobytes()
        codes = _codes(stored.reshape(1, -1), self.bits, prod(self.shape)).reshape(self.shape)
        lines = np.moveaxis(codes, self.axis, -1).reshape(-1, self.row)
        if self.bits in (2, 4) and self.row * self.bits % 8 == 0:
            return stream(lines.reshape(-1), self.bits).tobytes()
        return pack(lines, self.bits).tobytes()


@dataclass(frozen=True)
class Reordered(StoredTensor):
    """A tensor in another order than in its file; it is read whole, and kept until one of another is read."""

    origin: StoredTensor | None = None
    order: Order = field(default=Order((), 0, 8), compare=False)
    of: str = ""  # the tensor that it is a part of
    last: dict[tuple[str, str], bytes] = field(default_factory=dict, compare=False)  # of all of a model

    def read(self, file: BufferedReader, at: int, size: int) -> bytearray:
        """Return ``size`` bytes from byte ``at`` on, in the order of docs/layout.md."""
        assert self.origin is not None
        key = self.of, self.origin.name
        if key not in self.last:
            if any(of != self.of for of, _ in self.last):
                self.last.clear()
            stored = self.origin.read(file, 0, self.origin.stored_bytes)
            self.last[key] = self.order.from_onnx(stored)
        return bytearray(self.last[key][at : at + size])
