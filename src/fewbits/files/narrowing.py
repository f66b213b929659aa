"""One tensor of a checkpoint into narrow parts and back, piece after piece."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from math import lcm, prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fewbits import kernels
from fewbits.errors import DataError
from fewbits.files.checkpoint import StoredTensor, chunks, read_bytes, torch_dtype
from fewbits.files.contents import Narrow
from fewbits.files.lines import lines
from fewbits.files.stored import SUFFIXES, Stored, Stream
from fewbits.formats import Format, for_one_channel, shares_scale
from fewbits.kernels.arrays import nm
from fewbits.kernels.bits.layout import Packed, moved
from fewbits.kernels.bits.nm_stream import by_magnitude
from fewbits.metrics import Tally

PIECE_VALUES = 1 << 18  # values worked on at once; counting what is lost takes twenty times their bytes

# What the kernels write themselves, of the dtypes that a tensor may have had.
_RESTORED = {
    "F64": np.dtype(np.float64),
    "F32": np.dtype(np.float32),
    "F16": np.dtype(np.float16),
    "BF16": kernels.BFLOAT16,
}

Array = NDArray[Any]
Put = Callable[[str, int, bytes], None]  # end of a part's name, byte offset in the part, bytes
Told = Callable[[float], None]  # fraction of the tensor that is done


@dataclass
class _Survey:
    """What scales that many pieces share depend on."""

    largest: float | None = None  # finite magnitude of the tensor; None where no scale depends on it
    largest_of_line: dict[int, float] = field(default_factory=dict)
    nonfinite: int = 0


def narrow(tensor: StoredTensor, stored: Stored, scale_rule: str, put: Put, told: Told) -> Tally:
    """Quantize a tensor to ``stored.format``, nearest even, and hand out the bytes of its parts.

    Where ``stored`` has a sparsity, the values of largest magnitude in each group are kept.

    Args:
        tensor: floating point, with at least one value.
        stored: of :func:`fewbits.files.stored.as_lines`.
        scale_rule: how power-of-two scales are chosen; formats with other scales keep their own rule.
        put: called with pieces of each part.
        told: called with the fraction that is done.

    Returns:
        The sums of the rounding errors.

    Raises:
        DataError: the tensor holds NaN or infinity, and the format cannot hold them; or its file was cut.
    """
    fmt, (_, row) = stored.format, lines(tensor.shape)
    survey = _survey(tensor, stored, row)
    streams, tally, at = stored.streams, Tally(), 0
    for x in chunks(tensor, row, multiple=_multiple(stored), values=PIECE_VALUES):
        here, amax = fmt, survey.largest
        if x.shape[1] < row and shares_scale(fmt, "channel"):
            # A part of a line: its largest value is known, as that of a tensor is.
            here, amax = for_one_channel(fmt), survey.largest_of_line[at // row]
        pruned = (
            x if stored.sparsity is None else np.where(by_magnitude(x, stored.sparsity), x, x.dtype.type(0))
        )
        chosen = kernels.options(here, scale_rule=scale_rule if kernels.has_scale_rule(here) else "floor")
        try:
            packed = kernels.quantize(pruned, here, 1, chosen, amax)
        except DataError:
            raise _cannot_hold(tensor, fmt) from None
        tally.add(x, kernels.dequantize(packed, here, x.shape, 1, x.dtype))
        if stored.sparsity is not None:
            n = x.shape[1]
            packed = packed._replace(codes=nm.compress(packed.codes, fmt, n, stored.sparsity))
        for suffix, part in zip(SUFFIXES, packed, strict=True):
            if part is not None:
                octets = np.ascontiguousarray(part).astype(part.dtype.newbyteorder("<"), copy=False)
                put(suffix, _offset(streams[suffix], at, row), octets.tobytes())
        at += x.size
        told(at / tensor.count)
    return tally


def widened(held: Narrow) -> Iterator[tuple[int, memoryview]]:
    """Yield (byte offset, bytes) of the ordinary tensor that a narrow one stands for, in its own dtype.

    Pieces have a bounded size; a tensor whose block axis is not the last is one piece.

    Raises:
        DataError: the file was cut since it was listed.
    """
    import torch

    dtype, at = held.stored.dtype, 0
    for y in _values(held, _RESTORED.get(dtype, np.dtype(np.float32))):
        whole = np.ascontiguousarray(y)
        if dtype not in _RESTORED:  # FP8
            whole = torch.from_numpy(whole).to(torch_dtype(dtype)).view(torch.uint8).numpy()
        octets = whole.reshape(-1).view(np.uint8).data
        yield at, octets
        at += len(octets)


def _values(held: Narrow, dtype: Any) -> Iterator[Array]:
    """Yield the values in C order, piece after piece, rounded once to a dtype of :mod:`fewbits.kernels`."""
    stored, shape = held.stored, held.stored.quantized_shape
    if not prod(shape):
        return
    row = moved(shape, stored.axis)[-1]
    if shape and stored.axis != len(shape) - 1:
        whole = _packed(held, row, 0, prod(shape) // row, row)
        arranged = (
            None if part is None else part.reshape(*held.parts[suffix].shape[:-1], -1)
            for suffix, part in zip(SUFFIXES, whole, strict=True)
        )
        yield kernels.dequantize(Packed(*arranged), stored.format, shape, stored.axis, dtype)  # type: ignore[arg-type]
        return
    count, multiple = prod(shape), _multiple(stored)
    step = row * (PIECE_VALUES // row) or max(PIECE_VALUES // multiple, 1) * multiple
    for start in [0] if row <= PIECE_VALUES else range(0, count, row):
        stop = count if row <= PIECE_VALUES else start + row
        for at in range(start, stop, step):
            size = min(step, stop - at)
            here = (size // row, row) if row <= PIECE_VALUES else (1, size)
            yield kernels.dequantize(_packed(held, row, at, *here), stored.format, here, 1, dtype)


def _packed(held: Narrow, row: int, at: int, rows: int, n: int) -> Packed:
    """Read the parts of ``rows`` whole lines, or of ``n`` values of one line, from value ``at`` on."""
    found: dict[str, Any] = dict.fromkeys(SUFFIXES)
    with held.file.open("rb") as file:
        for suffix, stream in held.stored.streams.items():
            one = stream.group == "tensor"
            width = stream.in_line(n)
            count = 1 if one else rows
            octets = read_bytes(file, held.parts[suffix], _offset(stream, at, row), count * width)
            dtype = np.dtype("<f4") if suffix == "outer" else np.dtype(np.uint8)
            found[suffix] = np.frombuffer(octets, dtype).reshape(count, -1)
    stored = held.stored
    if stored.sparsity is not None:
        try:
            found["codes"] = nm.expand(found["codes"], stored.format, n, stored.sparsity)
        except DataError as error:
            raise DataError(f"tensor {held.name!r:.200} of {held.file}: {error}") from None
    return Packed(**found)


def _offset(stream: Stream, at: int, row: int) -> int:
    """Return the byte of a part at which value ``at`` of the tensor is; ``row`` values are in a line."""
    if stream.group == "tensor":
        return 0
    line, within = divmod(at, row)
    return line * stream.in_line(row) + (0 if isinstance(stream.group, str) else stream.in_line(within))


def _multiple(stored: Stored) -> int:
    """Return the values after which every part of a line is at a byte and at the end of a block."""
    return lcm(*(s.multiple for s in stored.streams.values()))


def _survey(tensor: StoredTensor, stored: Stored, row: int) -> _Survey:
    """Read a tensor for the largest values that its scales need, where pieces share a scale."""
    survey, at, fmt = _Survey(), 0, stored.format
    of_line = shares_scale(fmt, "channel") and row > PIECE_VALUES
    if not of_line and not shares_scale(fmt, "tensor"):
        return survey
    for x in chunks(tensor, row, multiple=_multiple(stored), values=PIECE_VALUES):
        finite = np.isfinite(x)
        survey.nonfinite += int(finite.size - np.count_nonzero(finite))
        largest = kernels.largest(np.where(finite, x, x.dtype.type(0)))
        survey.largest = max(survey.largest or 0.0, largest)
        survey.largest_of_line[at // row] = max(largest, survey.largest_of_line.get(at // row, 0.0))
        at += x.size
    scales = fmt.groups.scales
    # One bad value would make everything that shares its scale NaN.
    long = scales is not None and isinstance(scales.size, str)
    if survey.nonfinite and long and fmt.default_nonfinite == "block_nan":
        raise _cannot_hold(tensor, fmt)
    return survey


def _cannot_hold(tensor: StoredTensor, fmt: Format) -> DataError:
    return DataError(
        f"tensor {tensor.name!r:.200} of {tensor.file} holds NaN or infinity, which {fmt!s:.200} cannot "
        "hold; name it in --keep, or choose a format that can"
    )
