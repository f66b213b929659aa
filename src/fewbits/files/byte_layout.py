"""Where the bytes of a narrow tensor lie in a safetensors file: its parts, and the items in their rows.

docs/layout.md is this module and :mod:`fewbits.files.narrow_metadata` in words; the first bytes of a file are
those of :mod:`fewbits.files.safetensors_header`.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import gcd, lcm
from typing import NamedTuple

from fewbits.files.checkpoint import StoredTensor
from fewbits.files.matrix_view import is_convolution_kernel, matrix_shape
from fewbits.files.safetensors_header import HeaderEntry
from fewbits.formats import Format, Pattern
from fewbits.kernels.bits.layout import groups, layout
from fewbits.kernels.bits.nm_stream import block_size, stream_bytes
from fewbits.kernels.bits.packing import line_bytes

SUFFIXES = ("codes", "scales", "shifts", "outer")  # of the names of the parts


class PartLayout(NamedTuple):
    """One part as bits: an item of ``bits`` bits for every ``group`` values of a row."""

    bits: int
    group: int | str  # a count, "channel" (one item for each row) or "tensor" (one item in all)
    pattern: Pattern | None = None  # of the codes, where only those of an N:M pattern are there

    def row_bytes(self, n: int) -> int:
        """Return the bytes of a row of ``n`` values."""
        if self.pattern is not None:
            return stream_bytes(n, self.bits, self.pattern)
        return int(line_bytes(groups((n,), self.group)[-1], self.bits))

    def offset(self, value: int, row: int) -> int:
        """Return the byte of the part at which a value of the tensor begins.

        Args:
            value: its index; at a multiple of :attr:`multiple` within its row.
            row: values in a row.
        """
        if self.group == "tensor":
            return 0
        index, within = divmod(value, row)
        return index * self.row_bytes(row) + (0 if isinstance(self.group, str) else self.row_bytes(within))

    @property
    def multiple(self) -> int:
        """Values after which a row is at a byte and at the end of a group."""
        if self.pattern is not None:
            return block_size(self.pattern)
        return 1 if isinstance(self.group, str) else self.group * (8 // gcd(self.bits, 8))


@dataclass(frozen=True)
class TensorLayout:
    """How one narrow tensor lies in its file; what the metadata says about it."""

    format: Format
    shape: tuple[int, ...]  # the tensor's own
    axis: int  # of the shape that was quantized, counted from the front
    dtype: str  # what it was and becomes again, as safetensors writes it
    view: tuple[int, ...] | None = None  # the shape that was quantized where it is not the tensor's own
    pattern: Pattern | None = None  # along the axis

    @property
    def quantized_shape(self) -> tuple[int, ...]:
        """The shape that was quantized."""
        return self.shape if self.view is None else self.view

    @property
    def parts(self) -> dict[str, HeaderEntry]:
        """The tensors that hold it, by the ends of their names."""
        shapes = layout(self.format, self.quantized_shape, self.axis, self.pattern)
        return {
            suffix: HeaderEntry("F32" if suffix == "outer" else "U8", shape)
            for suffix, shape in zip(SUFFIXES, shapes, strict=True)
            if shape is not None
        }

    @property
    def placeholder(self) -> HeaderEntry:
        """What bears the tensor's own name: without a value, so that nobody takes it for the tensor."""
        return HeaderEntry(self.dtype, (0,))

    @property
    def part_layouts(self) -> dict[str, PartLayout]:
        """The same parts as bits."""
        groups = self.format.groups
        parts = {
            suffix: PartLayout(group.bits, group.size)
            for suffix, group in zip(SUFFIXES, groups, strict=True)
            if group is not None
        }
        return parts | {"codes": PartLayout(groups.codes.bits, 1, self.pattern)}

    @property
    def multiple(self) -> int:
        """Values after which a row of every part is at a byte and at the end of a group."""
        return lcm(*(part.multiple for part in self.part_layouts.values()))

    @property
    def nbytes(self) -> int:
        """Bytes of all parts."""
        return sum(part.nbytes for part in self.parts.values())


def layout_of(tensor: StoredTensor, format: Format, pattern: Pattern | None = None) -> TensorLayout:
    """Return how a tensor of a checkpoint lies in its file once it is cast: blocks along its rows.

    Args:
        tensor: an ordinary one.
        format: what it is cast to.
        pattern: counts for matrices whose rows are whole groups; others keep all their values.
    """
    if pattern is not None and len(tensor.shape) == 2 and tensor.shape[1] % pattern.group == 0:
        return TensorLayout(format, tensor.shape, 1, tensor.dtype, pattern=pattern)
    if is_convolution_kernel(tensor.shape):
        return TensorLayout(format, tensor.shape, 1, tensor.dtype, matrix_shape(tensor.shape))
    return TensorLayout(format, tensor.shape, len(tensor.shape) - 1, tensor.dtype)


def part_name(tensor: str, suffix: str) -> str:
    """Return the name of one part in the file."""
    return f"{tensor}.{suffix}"
