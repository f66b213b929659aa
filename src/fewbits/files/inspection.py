"""What a checkpoint holds and whether it is sound: all parts there, spare bits zero, every code valid."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from math import prod

import numpy as np
from numpy.typing import NDArray

from fewbits.errors import DataError
from fewbits.files.checkpoint import StoredTensor, read_bytes
from fewbits.files.checksum import problem
from fewbits.files.contents import Held, Narrow, read_contents
from fewbits.files.stored import Stream
from fewbits.kernels.arrays import nm
from fewbits.kernels.bits.layout import groups, moved
from fewbits.kernels.bits.packing import line_bytes, unpack
from fewbits.records import InspectedTensor, InspectReport

_PIECE_BYTES = 1 << 20

Progress = Callable[[float, float, str], None]


def inspect(path: str | os.PathLike[str], *, progress: Progress | None = None) -> InspectReport:
    """List the tensors of a checkpoint, narrow ones in place of their parts, and check the narrow ones.

    Args:
        path: as for :func:`fewbits.files.checkpoint.read_checkpoint`.
        progress: called with (bytes done, all bytes, name of the tensor).

    Raises:
        DataError: the checkpoint cannot be read at all.
    """
    contents = read_contents(path)
    problems = list(contents.problems)
    total, done = sum(t.stored_bytes for t in contents.tensors), 0
    for held in contents.tensors:

        def told(more: int, name: str = held.name) -> None:
            nonlocal done
            done += more
            if progress is not None:
                progress(done, total, name)

        parts = list(held.parts.values()) if isinstance(held, Narrow) else [held]
        changed = [wrong for part in parts if (wrong := problem(part, told))]
        problems += [f"{held.file}: {wrong}" for wrong in changed]
        if isinstance(held, Narrow) and not changed:
            problems += [f"{held.file}: tensor {held.name!r:.200}: {wrong}" for wrong in _wrong(held)]
    return InspectReport(os.fspath(path), tuple(_told(held) for held in contents.tensors), tuple(problems))


def _told(held: Held) -> InspectedTensor:
    if isinstance(held, Narrow):
        stored = held.stored
        sparsity = None if stored.sparsity is None else str(stored.sparsity)
        fmt = stored.format.name
        return InspectedTensor(held.name, stored.shape, stored.dtype, fmt, held.stored_bytes, sparsity)
    return InspectedTensor(held.name, held.shape, held.dtype, None, held.stored_bytes)


def _wrong(held: Narrow) -> Iterator[str]:
    """Yield a sentence for each kind of bits in the parts that no writer leaves there."""
    stored = held.stored
    row = moved(stored.quantized_shape, stored.axis)[-1]
    for suffix, stream in held.stored.streams.items():
        if suffix == "outer":
            continue
        if stream.sparsity is not None:
            yield from _wrong_stream(held, row)
            continue
        count = groups((row,), stream.group)[-1]
        spare = _spare_bits(held.parts[suffix], stream, count)
        if spare:
            yield f"{spare} lines of its part {suffix!r} have spare bits that are not zero"
    values = _values_of_lookup(held)
    if values is not None and stored.sparsity is None:
        invalid = _codes_from(held.parts["codes"], stored.streams["codes"].bits, row, values)
        if invalid:
            yield f"{invalid} codes are no value of {stored.format!s:.100}, which has {values}"


def _wrong_stream(held: Narrow, row: int) -> Iterator[str]:
    """Yield a sentence where a mask does not keep what the sparsity says; lines are read whole."""
    stored, part = held.stored, held.parts["codes"]
    assert stored.sparsity is not None
    width = stored.streams["codes"].in_line(row)
    if not width:
        return
    step = width * max(_PIECE_BYTES // width, 1)
    with part.file.open("rb") as file:
        for at in range(0, part.stored_bytes, step):
            octets = read_bytes(file, part, at, min(step, part.stored_bytes - at))
            streams = np.frombuffer(octets, np.uint8).reshape(-1, width)
            try:
                nm.check_masks(streams, stored.format, row, stored.sparsity)
            except DataError as error:
                yield f"its part 'codes', from line {at // width} on: {error}"
                return


def _values_of_lookup(held: Narrow) -> int | None:
    """Return how many values the element's list has, where codes beyond its end exist."""
    element = held.stored.format.element
    return element.code_count if element.code_count < 2**element.bits else None


def _spare_bits(part: StoredTensor, stream: Stream, count: int) -> int:
    """Return how many lines of ``count`` items have a bit set after the last item."""
    used = count * stream.bits % 8
    if not used:
        return 0
    width = line_bytes(count, stream.bits)
    if width <= _PIECE_BYTES:
        return sum(int(np.count_nonzero(lines[:, -1] >> used)) for lines in _lines(part, width))
    with part.file.open("rb") as file:
        ends = range(width - 1, part.stored_bytes, width)
        return sum(read_bytes(file, part, at, 1)[0] >> used > 0 for at in ends)


def _codes_from(part: StoredTensor, bits: int, row: int, first: int) -> int:
    """Return how many codes are ``first`` or above."""
    return sum(
        int(np.count_nonzero(unpack(lines, bits, min(row, lines.shape[1] * 8 // bits)) >= first))
        for lines in _lines(part, line_bytes(row, bits), multiple=bits)
    )


def _lines(part: StoredTensor, width: int, *, multiple: int = 1) -> Iterator[NDArray[np.uint8]]:
    """Yield a part as (lines, bytes), piece after piece; a long line is cut at a multiple of bytes."""
    if not prod(part.shape):
        return
    whole = width <= _PIECE_BYTES
    step = width * (_PIECE_BYTES // width) if whole else _PIECE_BYTES // multiple * multiple
    with part.file.open("rb") as file:
        for start in [0] if whole else range(0, part.stored_bytes, width):
            stop = part.stored_bytes if whole else start + width
            for at in range(start, stop, step):
                size = min(step, stop - at)
                octets = np.frombuffer(read_bytes(file, part, at, size), np.uint8)
                yield octets.reshape(-1, width if whole else size)
