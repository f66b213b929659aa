"""The byte layout of a narrow tensor in a safetensors file: its parts and the items in their rows.

docs/layout.md describes this module and :mod:`fewbits.files.narrow_metadata`; the file header is written by
:mod:`fewbits.files.safetensors_header`.
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

SUFFIXES = ("codes", "scales", "shifts", "outer")  # appended to the name of the tensor


class PartLayout(NamedTuple):
    """The bit layout of one part: an item of ``bits`` bits for every ``group`` values of a row."""

    bits: int
    group: int | str  # a count, "channel" (one item for each row) or "tensor" (one item in all)
    pattern: Pattern | None = None  # N:M pattern of the codes; None if all codes are stored

    def row_bytes(self, n: int) -> int:
        """Return the bytes of a row of ``n`` values."""
        if self.pattern is not None:
            return stream_bytes(n, self.bits, self.pattern)
        return int(line_bytes(groups((n,), self.group)[-1], self.bits))

    def offset(self, value: int, row: int) -> int:
        """Return the byte offset in the part of a value of the tensor.

        Args:
            value: its flat index, at a multiple of :attr:`multiple` within its row.
            row: values in a row.
        """
        if self.group == "tensor":
            return 0
        index, within = divmod(value, row)
        return index * self.row_bytes(row) + (0 if isinstance(self.group, str) else self.row_bytes(within))

    @property
    def multiple(self) -> int:
        """Number of values at whose multiples in a row a byte and a group begin."""
        if self.pattern is not None:
            return block_size(self.pattern)
        return 1 if isinstance(self.group, str) else self.group * (8 // gcd(self.bits, 8))


@dataclass(frozen=True)
class TensorLayout:
    """The layout of one narrow tensor in its file, as recorded in the metadata."""

    format: Format
    shape: tuple[int, ...]  # the tensor's own
    axis: int  # block axis of the quantized shape, non-negative
    dtype: str  # of the ordinary tensor, in the spelling of safetensors
    view: tuple[int, ...] | None = None  # the quantized shape if it differs from ``shape``
    pattern: Pattern | None = None  # N:M pattern along the axis

    @property
    def quantized_shape(self) -> tuple[int, ...]:
        """The shape that was quantized."""
        return self.shape if self.view is None else self.view

    @property
    def parts(self) -> dict[str, HeaderEntry]:
        """The entries of its parts in the file, by the suffixes of their names."""
        shapes = layout(self.format, self.quantized_shape, self.axis, self.pattern)
        return {
            suffix: HeaderEntry("F32" if suffix == "outer" else "U8", shape)
            for suffix, shape in zip(SUFFIXES, shapes, strict=True)
            if shape is not None
        }

    @property
    def placeholder(self) -> HeaderEntry:
        """The entry under the tensor's own name: empty, so that no program mistakes it for the tensor."""
        return HeaderEntry(self.dtype, (0,))

    @property
    def part_layouts(self) -> dict[str, PartLayout]:
        """The bit layouts of the parts, by suffix."""
        groups = self.format.groups
        parts = {
            suffix: PartLayout(group.bits, group.size)
            for suffix, group in zip(SUFFIXES, groups, strict=True)
            if group is not None
        }
        return parts | {"codes": PartLayout(groups.codes.bits, 1, self.pattern)}

    @property
    def multiple(self) -> int:
        """Number of values at whose multiples in a row a byte and a group begin in every part."""
        return lcm(*(part.multiple for part in self.part_layouts.values()))

    @property
    def nbytes(self) -> int:
        """Bytes of all parts."""
        return sum(part.nbytes for part in self.parts.values())


def layout_of(tensor: StoredTensor, format: Format, pattern: Pattern | None = None) -> TensorLayout:
    """Return the layout of a tensor of a checkpoint after a cast, with blocks along its rows.

    Args:
        tensor: an ordinary one.
        format: what it is cast to.
        pattern: applied to matrices whose rows are whole groups; other tensors stay dense.
    """
    if pattern is not None and len(tensor.shape) == 2 and tensor.shape[1] % pattern.group == 0:
        return TensorLayout(format, tensor.shape, 1, tensor.dtype, pattern=pattern)
    if is_convolution_kernel(tensor.shape):
        return TensorLayout(format, tensor.shape, 1, tensor.dtype, matrix_shape(tensor.shape))
    return TensorLayout(format, tensor.shape, len(tensor.shape) - 1, tensor.dtype)


def part_name(tensor: str, suffix: str) -> str:
    """Return the name of one part in the file."""
    return f"{tensor}.{suffix}"
