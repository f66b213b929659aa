"""Slices of a packed tensor without new rounding: whole blocks along the block axis, else any index."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import gcd, lcm

import torch

from fewbits.errors import ArgumentError
from fewbits.formats import Format
from fewbits.formats.pattern import Pattern
from fewbits.kernels.bits.nm_stream import block_size, stream_bytes
from fewbits.tensor.narrow.tensor import NarrowTensor
from fewbits.tensor.narrow.views import counted, lead, per_line


def bits_per_group(format: Format, sparsity: Pattern | None = None) -> Iterator[tuple[int, int] | None]:
    """Yield (values, bits), values that share that many bits, for codes, scales, shifts and outer scales.

    None stands for a part that the format lacks, or that does not extend along the axis.
    """
    codes, *shared = format.groups
    block = 1 if sparsity is None else block_size(sparsity)
    yield block, codes.bits if sparsity is None else 8 * stream_bytes(block, codes.bits, sparsity)
    for group in shared:
        yield None if group is None or isinstance(group.size, str) else (group.size, group.bits)


def boundary(format: Format, sparsity: Pattern | None = None) -> int:
    """Return the number of values at whose multiples the block axis can be sliced.

    At these positions a block starts, and every part is at a byte boundary.

    >>> from fewbits.formats import parse
    >>> [boundary(parse(name)) for name in ("int8", "fp4_e2m1", "mxfp4", "mx9", "vsq6", "int4_channel")]
    [1, 2, 32, 16, 64, 2]
    """
    return lcm(
        *(count * (8 // gcd(bits, 8)) for count, bits in filter(None, bits_per_group(format, sparsity)))
    )


def cut(
    q: NarrowTensor, dim: int = 0, start: int | None = None, end: int | None = None, step: int = 1
) -> NarrowTensor:
    """Return ``q[start:end:step]`` along ``dim``, sharing its bytes.

    Raises:
        ArgumentError: the slice along the block axis has a step, or ends inside a block.
    """
    dim = counted(q, dim)
    n = q.shape[dim] if q.ndim else 1
    start, end, step = slice(start, end, step).indices(n)
    end = max(start, end)
    if dim == q.axis:
        return _cut_blocks(q, start, end, step)
    shape = [*q.shape[:dim], -(-(end - start) // step), *q.shape[dim + 1 :]]
    at = (slice(None),) * lead(q, dim) + (slice(start, end, step),)
    return per_line(q, shape, q.axis, lambda part: part[at])


def select(q: NarrowTensor, dim: int, index: int) -> NarrowTensor:
    """Return ``q[index]`` along ``dim``, sharing its bytes."""
    dim = _beside_blocks(q, dim, f"the index {index}")
    shape = [*q.shape[:dim], *q.shape[dim + 1 :]]
    return per_line(q, shape, q.axis - (dim < q.axis), lambda part: part.select(lead(q, dim), index))


def gather(q: NarrowTensor, dim: int, index: torch.Tensor) -> NarrowTensor:
    """Return ``q`` indexed along ``dim`` by an integer tensor of any shape or a boolean vector."""
    dim = _beside_blocks(q, dim, "an index tensor")
    mask = index.dtype in (torch.bool, torch.uint8)  # torch treats uint8 indices as booleans
    if mask and index.shape != (q.shape[dim],):
        raise ArgumentError(
            f"a mask of shape {tuple(index.shape)} for axis {dim} of {q}; give one boolean for each of its "
            f"{q.shape[dim]} indices"
        )
    where = index.nonzero().squeeze(-1) if mask else index
    shape = [*q.shape[:dim], *where.shape, *q.shape[dim + 1 :]]
    axis = q.axis + (where.ndim - 1 if dim < q.axis else 0)
    at = (slice(None),) * lead(q, dim) + (where,)
    return per_line(q, shape, axis, lambda part: part[at], copies=True)


def index_select(q: NarrowTensor, dim: int, index: torch.Tensor) -> NarrowTensor:
    """Return a copy of ``q`` at the places along ``dim`` that a vector of integers from 0 up names."""
    _check_index(index)
    dim = _beside_blocks(q, dim, "an index tensor")
    shape = [*q.shape[:dim], index.numel(), *q.shape[dim + 1 :]]
    # torch refuses for each part what it refuses for a tensor: other dtypes and shapes, places out of range.
    return per_line(q, shape, q.axis, lambda part: part.index_select(lead(q, dim), index), copies=True)


def rows(q: NarrowTensor, indices: torch.Tensor) -> NarrowTensor:
    """Return a copy of the rows of a matrix that integers from 0 up name, in a tensor of any shape."""
    _check_index(indices)
    _beside_blocks(q, 0, "an index tensor")
    shape = [*indices.shape, q.shape[-1]]
    return per_line(q, shape, indices.ndim, lambda part: torch.embedding(part, indices), copies=True)


def index(q: NarrowTensor, indices: Sequence[torch.Tensor | None]) -> NarrowTensor:
    """Return ``q[..., indices, ...]`` with one index tensor."""
    given = [(dim, where) for dim, where in enumerate(indices) if where is not None]
    _check_index(*(where for _, where in given))
    if len(given) != 1:
        raise ArgumentError(
            f"{len(given)} index tensors for {q}; give one at a time, or call .dequantize() first"
        )
    return gather(q, *given[0])


def split(q: NarrowTensor, size: int | Sequence[int], dim: int = 0) -> list[NarrowTensor]:
    """Return ``q`` split along ``dim`` into parts of ``size``, the last may be smaller, or of given sizes."""
    n = q.shape[counted(q, dim)] if q.ndim else 1
    if isinstance(size, int):
        if size < 1 and (size or n):
            raise ArgumentError(f"pieces of {size} for an axis of {n}; give a length from 1 up")
        sizes = [min(size, n - start) for start in range(0, n, size)] if n else [0]
    else:
        sizes = list(size)
    ends = [sum(sizes[: i + 1]) for i in range(len(sizes))]
    if min(sizes, default=0) < 0 or sum(sizes) != n:
        raise ArgumentError(f"pieces of {sizes} for an axis of {n}; lengths from 0 up whose sum is {n}")
    return [cut(q, dim, end - length, end) for end, length in zip(ends, sizes, strict=True)]


def unbind(q: NarrowTensor, dim: int = 0) -> list[NarrowTensor]:
    """Return ``q[0]``, ``q[1]``, ... along ``dim``."""
    dim = _beside_blocks(q, dim, "unbind")
    return [select(q, dim, i) for i in range(q.shape[dim])]


def _cut_blocks(q: NarrowTensor, start: int, end: int, step: int) -> NarrowTensor:
    n, whole = q.shape[q.axis] if q.ndim else 1, boundary(q.format, q.sparsity)
    if step != 1 or any(place % whole and place != n for place in (start, end)):
        raise ArgumentError(
            f"[{start}:{end}:{step}] along the block axis {q.axis} of {q} cuts a block or a byte; start and "
            f"end at multiples of {whole} or at its end, {n}, without a step, or call .dequantize() first"
        )

    def piece(part: torch.Tensor, group: tuple[int, int] | None) -> torch.Tensor:
        if group is None:
            return part
        count, bits = group
        first, last = (-(-(-(-value // count) * bits) // 8) for value in (start, end))
        return part[..., first:last]

    parts = tuple(
        part if part is None else piece(part, group)
        for part, group in zip(q.pieces, bits_per_group(q.format, q.sparsity), strict=True)
    )
    return q.remade(parts, [*q.shape[: q.axis], end - start, *q.shape[q.axis + 1 :]], q.axis)


def _check_index(*given: torch.Tensor) -> None:
    """Raise ArgumentError for an index that is packed; what it is an index of may be any tensor then."""
    for index in given:
        if isinstance(index, NarrowTensor):
            raise ArgumentError(f"{index} as an index; expected an ordinary tensor of integers or booleans")


def _beside_blocks(q: NarrowTensor, dim: int, what: str) -> int:
    dim = counted(q, dim)
    if dim == q.axis:
        raise ArgumentError(
            f"{what} along the block axis {dim} of {q} cuts its blocks; slice it at multiples of "
            f"{boundary(q.format, q.sparsity)}, or call .dequantize() first"
        )
    return dim
