"""The published storage of 2:4: half the values and two bits of index for each, in the order of CUTLASS.

Accelerating Sparse Deep Neural Networks (Mishra and others 2021), section 3, has the indices. Their order in
memory is that of CUTLASS, tools/util/include/cutlass/util/host_reorder.h, and the bytes are those of
PyTorch's ``torch.sparse._semi_structured_conversions``: what it writes is read here, and the other way round.
"""

from __future__ import annotations

from typing import NamedTuple

import torch

from fewbits.errors import ArgumentError, DataError, DTypeError

# The four bits of a group, first index below second, by which of its values are not zero, bit p for position
# p. Where fewer than two are, zeros are kept; the choice is CUTLASS's. -1: more than two.
_INDICES = (14, 8, 9, 4, 14, 8, 9, -1, 14, 12, 13, -1, 14, -1, -1, -1)


class _Kind(NamedTuple):
    metadata: torch.dtype
    groups: int  # that an element of the metadata holds
    rows: int  # that are reordered together
    group: int  # values of a group: 4, or 2 of which one is kept


_KINDS = {
    torch.float16: _Kind(torch.int16, 4, 32, 4),
    torch.bfloat16: _Kind(torch.int16, 4, 32, 4),
    torch.int8: _Kind(torch.int32, 8, 16, 4),
    torch.float32: _Kind(torch.int16, 4, 32, 2),  # a value counts as two halves: 1:2
}


def compress(w: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the kept values and the index metadata of a sparse matrix.

    Args:
        w: (m, k), 2:4 sparse along k; float16, bfloat16 or int8, or float32 that is 1:2 sparse. m is a
            multiple of 32, of 16 for int8; k is one of 32, of 64 for int8 and of 16 for float32.

    Returns:
        Values (m, k / 2) of w's dtype, and metadata (m, k / 16) int16; for int8 (m, k / 32) int32, for
        float32 (m, k / 8) int16.

    Raises:
        DTypeError: w has another dtype.
        ArgumentError: another shape.
        DataError: a group keeps more values than the pattern.

    >>> values, metadata = compress(torch.eye(32).half())
    >>> values.shape, metadata.shape, bool((decompress(values, metadata) == torch.eye(32)).all())
    (torch.Size([32, 16]), torch.Size([32, 2]), True)
    """
    kind = _kind(w)
    m, k = w.shape if w.ndim == 2 else (0, 0)
    step = 2 * kind.group * kind.groups  # pairs of columns lie together
    if w.ndim != 2 or m % kind.rows or k % step:
        raise ArgumentError(
            f"a tensor of {w.dtype} and shape {tuple(w.shape)}; expected a matrix with a multiple of "
            f"{kind.rows} rows and of {step} columns: pad it, or store it by fewbits.quantize(..., sparsity=)"
        )
    groups = w.reshape(m, k // kind.group, kind.group)
    nonzero = groups != 0
    # Not a product of integers, which GPUs have no operation for in torch.
    bits = nonzero.repeat_interleave(4 // kind.group, -1) << torch.arange(4, device=w.device)
    patterns = bits.sum(-1)
    indices = torch.tensor(_INDICES, device=w.device)[patterns]
    if bool((indices < 0).any()):
        row = int((indices < 0).any(1).nonzero()[0])
        raise DataError(
            f"row {row} has a group of {kind.group} with more than {kind.group // 2} values that are not "
            "zero; set the others to zero first"
        )
    first, second = indices & 3, indices >> 2
    places = torch.stack((first, second), -1) if kind.group == 4 else (first // 2).unsqueeze(-1)
    values = _bits(groups).gather(-1, places).reshape(m, k // 2).view(w.dtype)
    shifts = 4 * torch.arange(kind.groups, device=w.device)
    per_row = k // (kind.group * kind.groups)  # of no rows a length left to reshape could be any
    words = (indices.reshape(m, per_row, kind.groups) << shifts).sum(-1).to(kind.metadata)
    ordered = torch.empty_like(words).view(-1)
    ordered[_order(m, words.shape[1], kind, w.device).view(-1)] = words.reshape(-1)
    return values, ordered.view(words.shape)


def decompress(values: torch.Tensor, metadata: torch.Tensor) -> torch.Tensor:
    """Return the (m, k) matrix of values and index metadata, zeros where nothing is kept.

    Args:
        values: (m, k / 2), as :func:`compress` returns them, or PyTorch.
        metadata: of those values.

    Raises:
        DTypeError: a dtype that :func:`compress` does not give.
        ArgumentError: shapes that do not belong together.
        DataError: indices that do not rise.
    """
    kind = _kind(values)
    if metadata.dtype != kind.metadata:
        raise DTypeError(
            f"metadata of {metadata.dtype} for values of {values.dtype}; expected {kind.metadata}"
        )
    m, half = values.shape if values.ndim == 2 else (-1, 0)
    step = kind.group * kind.groups
    wanted = (m, 2 * half // step)
    if m % kind.rows or half % step or tuple(metadata.shape) != wanted:
        raise ArgumentError(
            f"values of shape {tuple(values.shape)} and metadata of shape {tuple(metadata.shape)}; expected "
            "both as fewbits.sparsity.compress returns them"
        )
    words = metadata.reshape(-1)[_order(m, wanted[1], kind, values.device)].long()
    shifts = 4 * torch.arange(kind.groups, device=values.device)
    indices = (words.unsqueeze(-1) >> shifts & 15).reshape(m, wanted[1] * kind.groups)
    if bool((indices & 3 >= indices >> 2).any()):
        raise DataError("metadata with indices that do not rise in a group; it is damaged: compress it again")
    first, second = indices & 3, indices >> 2
    places = torch.stack((first, second), -1) if kind.group == 4 else (first // 2).unsqueeze(-1)
    kept = _bits(values).reshape(places.shape)
    dense = kept.new_zeros(*places.shape[:2], kind.group).scatter_(-1, places, kept)
    return dense.reshape(m, 2 * half).view(values.dtype)


def _bits(x: torch.Tensor) -> torch.Tensor:
    """Return values as integers: torch's own copies of bfloat16 change NaN."""
    return x.contiguous().view({1: torch.int8, 2: torch.int16, 4: torch.int32}[x.element_size()])


def _kind(w: torch.Tensor) -> _Kind:
    if w.dtype not in _KINDS:
        raise DTypeError(f"a tensor of {w.dtype}; expected float16, bfloat16, int8 or float32")
    return _KINDS[w.dtype]


def _order(m: int, columns: int, kind: _Kind, device: torch.device) -> torch.Tensor:
    """Return where each element of the (m, columns) metadata lies in memory, as CUTLASS reorders it."""
    rows = torch.arange(m, device=device).unsqueeze(1)
    column = torch.arange(columns, device=device).unsqueeze(0)
    row = rows // kind.rows * kind.rows + rows % 8 * (kind.rows // 8) + rows % kind.rows // 8
    # The blocks of 2 x 2 are transposed, then pairs of columns lie together.
    swap = column % 2 - row % 2
    row, column = row + swap, column - swap
    return column // 2 * (2 * m) + row * 2 + column % 2
