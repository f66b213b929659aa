"""Inspection of a checkpoint: its tensors, and whether parts, spare bits, codes and checksums are valid."""

from __future__ import annotations

import os
from collections.abc import Iterator
from math import prod

import numpy as np
from numpy.typing import NDArray

from fewbits.errors import DataError
from fewbits.files.byte_layout import PartLayout
from fewbits.files.checkpoint import StoredTensor
from fewbits.files.checksum import problem
from fewbits.files.contents import read_contents
from fewbits.files.narrow_tensor import AnyStoredTensor, StoredNarrowTensor
from fewbits.files.pieces import pieces
from fewbits.kernels.arrays import nm
from fewbits.kernels.bits.layout import groups, moved
from fewbits.kernels.bits.packing import line_bytes, unpack
from fewbits.records import InspectedTensor, InspectReport
from fewbits.typing import Progress

_PIECE_BYTES = 1 << 20


def inspect(path: str | os.PathLike[str], *, progress: Progress | None = None) -> InspectReport:
    """List the tensors of a checkpoint, narrow ones as one entry each, and check the narrow ones.

    Args:
        path: a ``.safetensors`` file, an index of several, or a folder of them; a ``.gguf`` file or an
            ``.onnx`` model.
        progress: called as ``progress("checking tensors", bytes done, all bytes)``.

    Returns:
        A record of each tensor, and a sentence for each problem.

    Raises:
        DataError: the checkpoint cannot be read at all.
    """
    contents = read_contents(path)
    problems = list(contents.problems)
    total, done = sum(t.stored_bytes for t in contents.tensors), 0

    def advance(more: int) -> None:
        nonlocal done
        done += more
        if progress is not None:
            progress("checking tensors", done, total)

    for tensor in contents.tensors:
        parts = list(tensor.parts.values()) if isinstance(tensor, StoredNarrowTensor) else [tensor]
        changed = [wrong for part in parts if (wrong := problem(part, advance))]
        problems += [f"{tensor.file}: {wrong}" for wrong in changed]
        if isinstance(tensor, StoredNarrowTensor) and not changed:
            problems += [f"{tensor.file}: tensor {tensor.name!r:.200}: {wrong}" for wrong in _wrong(tensor)]
    return InspectReport(os.fspath(path), tuple(_row(tensor) for tensor in contents.tensors), tuple(problems))


def _row(tensor: AnyStoredTensor) -> InspectedTensor:
    layout = tensor.layout if isinstance(tensor, StoredNarrowTensor) else None
    pattern = None if layout is None or layout.pattern is None else str(layout.pattern)
    fmt = None if layout is None else layout.format.name
    return InspectedTensor(tensor.name, tensor.shape, tensor.dtype, fmt, tensor.stored_bytes, pattern)


def _wrong(tensor: StoredNarrowTensor) -> Iterator[str]:
    """Yield a sentence for each kind of invalid bits in the parts."""
    layout = tensor.layout
    row = moved(layout.quantized_shape, layout.axis)[-1]
    for suffix, part in layout.part_layouts.items():
        if suffix == "outer":
            continue
        if part.pattern is not None:
            yield from _wrong_masks(tensor, row)
            continue
        count = groups((row,), part.group)[-1]
        spare = _spare_bits(tensor.parts[suffix], part, count)
        if spare:
            yield f"{spare} lines of its part {suffix!r} have spare bits that are not zero"
    values = _values_of_lookup(tensor)
    if values is not None and layout.pattern is None:
        invalid = _codes_from(tensor.parts["codes"], layout.part_layouts["codes"].bits, row, values)
        if invalid:
            yield f"{invalid} codes are no value of {layout.format!s:.100}, which has {values}"


def _wrong_masks(tensor: StoredNarrowTensor, row: int) -> Iterator[str]:
    """Yield a sentence for each mask that does not match the pattern; full rows are read at once."""
    layout, part = tensor.layout, tensor.parts["codes"]
    assert layout.pattern is not None
    width = layout.part_layouts["codes"].row_bytes(row)
    if not width:
        return
    most = max(_PIECE_BYTES, width)
    with part.file.open("rb") as file:
        for at, size in pieces(part.stored_bytes, width, most=most):
            rows = np.frombuffer(part.read(file, at, size), np.uint8).reshape(-1, width)
            try:
                nm.check_masks(rows, layout.format, row, layout.pattern)
            except DataError as error:
                yield f"its part 'codes', from line {at // width} on: {error}"
                return


def _values_of_lookup(tensor: StoredNarrowTensor) -> int | None:
    """Return the number of values of a lookup element if it has unused codes, else None."""
    element = tensor.layout.format.element
    return element.code_count if element.code_count < 2**element.bits else None


def _spare_bits(part: StoredTensor, layout: PartLayout, count: int) -> int:
    """Return how many lines of ``count`` items have a bit set after the last item."""
    used = count * layout.bits % 8
    if not used:
        return 0
    width = line_bytes(count, layout.bits)
    if width <= _PIECE_BYTES:
        return sum(int(np.count_nonzero(lines[:, -1] >> used)) for lines in _lines(part, width))
    with part.file.open("rb") as file:
        ends = range(width - 1, part.stored_bytes, width)
        return sum(part.read(file, at, 1)[0] >> used > 0 for at in ends)


def _codes_from(part: StoredTensor, bits: int, row: int, first: int) -> int:
    """Return how many codes are ``first`` or above."""
    return sum(
        int(np.count_nonzero(unpack(lines, bits, min(row, lines.shape[1] * 8 // bits)) >= first))
        for lines in _lines(part, line_bytes(row, bits), multiple=bits)
    )


def _lines(part: StoredTensor, width: int, *, multiple: int = 1) -> Iterator[NDArray[np.uint8]]:
    """Yield pieces of a part as (lines, bytes); a long line is cut at a multiple of ``multiple`` bytes."""
    if not prod(part.shape):
        return
    with part.file.open("rb") as file:
        for at, size in pieces(part.stored_bytes, width, most=_PIECE_BYTES, multiple=multiple):
            octets = np.frombuffer(part.read(file, at, size), np.uint8)
            yield octets.reshape(-1, width if width <= _PIECE_BYTES else size)
