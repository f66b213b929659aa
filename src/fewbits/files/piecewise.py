"""Quantize and dequantize one tensor of a checkpoint in pieces, with bounded memory."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from math import inf, prod

import numpy as np
import numpy.typing as npt
from numpy.typing import NDArray

from fewbits import kernels
from fewbits.errors import DataError
from fewbits.files.byte_layout import SUFFIXES, TensorLayout
from fewbits.files.checkpoint import StoredTensor, chunks, torch_dtype
from fewbits.files.matrix_view import matrix_shape
from fewbits.files.narrow_tensor import StoredNarrowTensor
from fewbits.files.pieces import pieces
from fewbits.files.survey import Survey, survey
from fewbits.formats import Format, shares_scale
from fewbits.kernels.arrays import nm
from fewbits.kernels.bits.layout import Packed, moved
from fewbits.kernels.bits.nm_stream import by_magnitude
from fewbits.kernels.bits.reals import widened
from fewbits.metrics import Tally
from fewbits.typing import NumpyArray

PIECE_VALUES = 1 << 18  # values processed at once

# Dtypes of ordinary tensors that the kernels can write directly.
_DEQUANTIZED: dict[str, np.dtype[np.generic]] = {
    "F64": np.dtype(np.float64),
    "F32": np.dtype(np.float32),
    "F16": np.dtype(np.float16),
    "BF16": kernels.BFLOAT16,
}

Put = Callable[[str, int, bytes], None]  # suffix of the part, byte offset in it, bytes
Advance = Callable[[float], None]  # fraction of the tensor that is done


def quantize_tensor(
    tensor: StoredTensor,
    layout: TensorLayout,
    scale_rule: str,
    put: Put,
    advance: Advance,
    *,
    seen: Survey | None = None,
    refuse_nonfinite: bool = False,
) -> Tally:
    """Quantize a tensor to ``layout.format``, to nearest even, and pass the bytes of its parts to ``put``.

    If ``layout`` has a pattern, the values of largest magnitude in each group are kept.

    Args:
        tensor: floating point, with at least one value.
        layout: of :func:`fewbits.files.byte_layout.layout_of`.
        scale_rule: how power-of-two scales are chosen; formats with other scales keep their own rule.
        put: called with pieces of each part.
        advance: called with the fraction that is done.
        seen: the largest values of all tensors that share the scale of this one; None if it has its own.
        refuse_nonfinite: whether NaN and infinity are refused even if the format can hold them.

    Returns:
        The sums of the rounding errors.

    Raises:
        DataError: the tensor holds NaN or infinity, and the format cannot hold them; or its file was cut.
    """
    row = matrix_shape(tensor.shape)[1]
    if seen is None:
        seen = _survey(tensor, layout, row)
    options = kernels.options(
        layout.format,
        scale_rule=scale_rule if kernels.has_scale_rule(layout.format) else "floor",
        nonfinite="raise" if refuse_nonfinite else None,
    )
    parts, tally, at = layout.part_layouts, Tally(), 0
    for x in chunks(tensor, row, multiple=layout.multiple, values=PIECE_VALUES):
        packed, sums = _quantize_piece(tensor, x, layout, options, _scale(seen, layout, x, at, row))
        tally.include(sums, x.size)
        for suffix, part in zip(SUFFIXES, packed, strict=True):
            if part is not None:
                octets = np.ascontiguousarray(part).astype(part.dtype.newbyteorder("<"), copy=False)
                put(suffix, parts[suffix].offset(at, row), octets.tobytes())
        at += x.size
        advance(at / tensor.count)
    return tally


def _scale(
    seen: Survey | None, layout: TensorLayout, x: NumpyArray, at: int, row: int
) -> tuple[Format, float | None]:
    """Return the format to round a piece with, and the largest magnitude for a shared scale, or None."""
    if seen is None:
        return layout.format, None
    return seen.scale_of(layout.format, at // row, x.shape[1] < row)


def _quantize_piece(
    tensor: StoredTensor,
    x: NumpyArray,
    layout: TensorLayout,
    options: kernels.Options,
    scale: tuple[Format, float | None],
) -> tuple[Packed, kernels.ErrorSums]:
    """Return the packed parts of a piece, and its errors."""
    fmt, amax = scale
    pruned = x
    if layout.pattern is not None:
        pruned = np.where(by_magnitude(widened(x), layout.pattern), x, x.dtype.type(0))
    try:
        packed = kernels.quantize(pruned, fmt, 1, options, amax)
    except DataError:
        raise _cannot_hold(tensor, layout.format) from None
    if layout.pattern is None:
        return packed, kernels.tally(x, fmt, 1, options, amax)
    # What the pattern drops is an error too, but nothing beyond a limit.
    wide = widened(x)
    dropped = kernels.tally_values(wide, kernels.dequantize(packed, fmt, x.shape, 1, wide.dtype), inf)
    sums = dropped._replace(saturated=kernels.tally(pruned, fmt, 1, options, amax).saturated)
    codes = nm.compress(packed.codes, layout.format, x.shape[1], layout.pattern)
    return packed._replace(codes=codes), sums


def dequantized_bytes(tensor: StoredNarrowTensor) -> Iterator[tuple[int, memoryview]]:
    """Yield (byte offset, bytes) of the ordinary tensor that a narrow one represents, in its dtype.

    Pieces have a bounded size, but for all values from the block axis on if that is not the last.

    Raises:
        DataError: the file became shorter after it was listed.
    """
    import torch

    dtype, at = tensor.layout.dtype, 0
    for y in _values(tensor, _DEQUANTIZED.get(dtype, np.dtype(np.float32))):
        values = np.ascontiguousarray(y)
        if dtype not in _DEQUANTIZED:  # FP8
            values = torch.from_numpy(values).to(torch_dtype(dtype)).view(torch.uint8).numpy()
        octets = values.reshape(-1).view(np.uint8).data
        yield at, octets
        at += len(octets)


def _values(tensor: StoredNarrowTensor, dtype: npt.DTypeLike) -> Iterator[NumpyArray]:
    """Yield the values in C order in pieces, in a dtype of :mod:`fewbits.kernels`."""
    layout, shape = tensor.layout, tensor.layout.quantized_shape
    if not prod(shape):
        return
    row = moved(shape, layout.axis)[-1]
    if shape and layout.axis != len(shape) - 1:
        inner = shape[layout.axis :]  # whose values lie together, blocks along them or not
        for at in range(0, prod(shape), prod(inner)):
            all_rows = _packed(tensor, row, at, prod(inner) // row, row)
            arranged = (
                None if part is None else part.reshape(*tensor.parts[suffix].shape[layout.axis : -1], -1)
                for suffix, part in zip(SUFFIXES, all_rows, strict=True)
            )
            yield kernels.dequantize(Packed(*arranged), layout.format, inner, 0, dtype)  # type: ignore[arg-type]  # four parts, each of its own dtype
        return
    for at, size in pieces(prod(shape), row, most=PIECE_VALUES, multiple=layout.multiple):
        here = (size // row, row) if row <= PIECE_VALUES else (1, size)
        yield kernels.dequantize(_packed(tensor, row, at, *here), layout.format, here, 1, dtype)


def _packed(tensor: StoredNarrowTensor, row: int, at: int, rows: int, n: int) -> Packed:
    """Read the parts of ``rows`` full rows, or of ``n`` values of one row, starting at value ``at``."""
    layout, parts = tensor.layout, dict[str, NDArray[np.uint8]]()
    outer: NDArray[np.float32] | None = None
    for suffix, part in layout.part_layouts.items():
        count = 1 if part.group == "tensor" else rows
        with tensor.parts[suffix].file.open("rb") as file:
            octets = tensor.parts[suffix].read(file, part.offset(at, row), count * part.row_bytes(n))
        if suffix == "outer":
            outer = np.frombuffer(octets, np.dtype("<f4")).reshape(count, -1)
        else:
            parts[suffix] = np.frombuffer(octets, np.uint8).reshape(count, -1)
    if layout.pattern is not None:
        try:
            parts["codes"] = nm.expand(parts["codes"], layout.format, n, layout.pattern)
        except DataError as error:
            raise DataError(f"tensor {tensor.name!r:.200} of {tensor.file}: {error}") from None
    return Packed(parts["codes"], parts.get("scales"), parts.get("shifts"), outer)


def _survey(tensor: StoredTensor, layout: TensorLayout, row: int) -> Survey | None:
    """If pieces share a scale, read the tensor for the largest values that its scales need; else None.

    Raises:
        DataError: the tensor holds NaN or infinity, which would make all values that share the scale NaN.
    """
    fmt = layout.format
    if not (shares_scale(fmt, "tensor") or (shares_scale(fmt, "channel") and row > PIECE_VALUES)):
        return None
    seen = survey(chunks(tensor, row, multiple=layout.multiple, values=PIECE_VALUES), row)
    scales = fmt.groups.scales
    is_shared = scales is not None and isinstance(scales.size, str)
    if seen.nans + seen.infinities and is_shared and fmt.default_nonfinite == "block_nan":
        raise _cannot_hold(tensor, fmt)
    return seen


def survey_together(tensors: Sequence[StoredTensor]) -> Survey:
    """Read tensors of which all share one scale, for their largest values."""
    seen = Survey()
    for tensor in tensors:
        row = matrix_shape(tensor.shape)[1]
        seen.include(survey(chunks(tensor, row, values=PIECE_VALUES), row))
    return seen


def _cannot_hold(tensor: StoredTensor, format: Format) -> DataError:
    return DataError(
        f"tensor {tensor.name!r:.200} of {tensor.file} holds NaN or infinity, which {format!s:.200} cannot"
        " hold; name it in `exclude`, or choose a format that can"
    )
