"""Views that keep lines along the block axis intact: permute, reshape and expand the other axes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod

import torch

from fewbits.errors import ArgumentError
from fewbits.tensor.narrow.tensor import NarrowTensor


def lead(q: NarrowTensor, dim: int) -> int:
    """Return the index of axis ``dim``, not the block axis, in the parts, whose block axis is last."""
    return dim if dim < q.axis else dim - 1


def counted(q: NarrowTensor, dim: int, extra: int = 0) -> int:
    """Return ``dim`` as a non-negative index for a tensor with ``extra`` more axes."""
    ndim = max(q.ndim + extra, 1)
    if not -ndim <= dim < ndim:
        raise ArgumentError(f"dim={dim} is out of range for {q}; use {-ndim} to {ndim - 1}")
    return dim % ndim


def per_line(
    q: NarrowTensor,
    shape: Sequence[int],
    axis: int,
    change: Callable[[torch.Tensor], torch.Tensor],
    *,
    copies: bool = False,
) -> NarrowTensor:
    """Return the tensor of ``shape`` whose parts are ``change`` applied to those of ``q``.

    A scale per tensor is only reshaped to the new number of axes; if ``change`` copies, it is copied too.
    """
    shared = (group is not None and group.size == "tensor" for group in q.format.groups)
    once = (1,) * (len(shape) - 1)

    def reshaped(part: torch.Tensor) -> torch.Tensor:
        found = part.view(*once, part.shape[-1])
        return found.clone() if copies else found

    parts = tuple(
        part if part is None else reshaped(part) if one else change(part)
        for part, one in zip(q.pieces, shared, strict=True)
    )
    return q.remade(parts, tuple(shape), axis)


def permute(q: NarrowTensor, dims: Sequence[int]) -> NarrowTensor:
    """Return ``q`` with its axes in the order of ``dims``, without copying."""
    order = [counted(q, d) for d in dims]
    if sorted(order) != list(range(q.ndim)):
        raise ArgumentError(f"permute{tuple(dims)} of {q}; name each of its {q.ndim} axes once")
    if not order:
        return q.each(lambda part: part)
    others = [lead(q, d) for d in order if d != q.axis]
    shape = [q.shape[d] for d in order]
    return per_line(q, shape, order.index(q.axis), lambda part: part.permute(*others, -1))


def transpose(q: NarrowTensor, first: int, second: int) -> NarrowTensor:
    """Return ``q`` with two axes exchanged, without copying."""
    if q.ndim == 2 and {first, second} in ({0, 1}, {-2, -1}):
        return _turned(q)
    order = list(range(q.ndim))
    a, b = counted(q, first), counted(q, second)
    if order:
        order[a], order[b] = b, a
    return permute(q, order)


def t(q: NarrowTensor) -> NarrowTensor:
    """Return the transpose of a matrix, or a vector unchanged."""
    ndim = q.ndim
    if ndim > 2:
        raise ArgumentError(f"t() of {q}; it takes at most 2 axes: use transpose or permute")
    return _turned(q) if ndim == 2 else permute(q, range(ndim)[::-1])


def _turned(q: NarrowTensor) -> NarrowTensor:
    """Return the transpose of a matrix, whose parts are the same."""
    rows, columns = q.shape
    return q.remade(q.pieces, (columns, rows), 1 - q.axis)


def reshape(q: NarrowTensor, size: Sequence[int]) -> NarrowTensor:
    """Return ``q`` in another shape, in which the block axis stays one axis, without copying.

    Raises:
        ArgumentError: the shape would cut or join lines along the block axis, or need a copy, or its -1 could
            be any length.
    """
    shape = _known(q, size)
    n = q.shape[q.axis] if q.ndim else 1
    before = prod(q.shape[: q.axis])
    if prod(shape) == q.numel():
        if not shape:
            return _reshaped(q, shape, 0)
        places = (d for d, length in enumerate(shape) if length == n and prod(shape[:d]) == before)
        axis = next(places, None)
        if axis is not None:
            if n == 1 or before == 0:  # then others may fit too
                axis = max([axis, *places], key=lambda d: (_alike(q, shape, d), d))
            return _reshaped(q, shape, axis)
    raise ArgumentError(
        f"{q} cannot be seen in the shape {tuple(size)}: its block axis of {n} values must stay one axis "
        "with as many values before it; call .dequantize() first"
    )


def _known(q: NarrowTensor, size: Sequence[int]) -> list[int]:
    """Return a shape for all values of ``q`` with the length that its -1 stands for."""
    shape = list(size)
    if shape.count(-1) > 1 or any(length < -1 for length in shape):
        raise ArgumentError(
            f"{q} cannot be seen in the shape {tuple(size)}: give lengths from 0 up, one of which may be -1"
        )
    if -1 in shape:
        rest = -prod(shape)
        if rest == 0 == q.numel():
            raise ArgumentError(
                f"{q} cannot be seen in the shape {tuple(size)}: -1 could be any length, since there are no "
                "values: give the length"
            )
        shape[shape.index(-1)] = q.numel() // rest if rest else 0
    return shape


def _alike(q: NarrowTensor, shape: list[int], axis: int) -> int:
    """Return in how much ``shape`` is around ``axis`` what ``q`` is around its block axis."""
    lengths, after = list(q.shape), shape[axis + 1 :]
    own = lengths[q.axis + 1 :]
    return (shape[:axis] == lengths[: q.axis]) + (after == own) + (prod(after) == prod(own))


def unsqueeze(q: NarrowTensor, dim: int) -> NarrowTensor:
    """Return ``q`` with an axis of length one at ``dim``."""
    at = counted(q, dim, extra=1)
    if not q.ndim:
        return _reshaped(q, [1], 0)
    shape = [*q.shape[:at], 1, *q.shape[at:]]
    return _reshaped(q, shape, q.axis + (at <= q.axis))


def squeeze(q: NarrowTensor, dims: Sequence[int] | int | None = None) -> NarrowTensor:
    """Return ``q`` without its axes of length one: all of them, or those of ``dims``."""
    named = range(q.ndim) if dims is None else [dims] if isinstance(dims, int) else dims
    gone = {d for d in (counted(q, d) for d in named) if q.ndim and q.shape[d] == 1}
    if q.axis in gone:
        raise ArgumentError(f"squeeze of {q} would drop its block axis; call .dequantize() first")
    shape = [length for d, length in enumerate(q.shape) if d not in gone]
    return _reshaped(q, shape, q.axis - sum(d < q.axis for d in gone))


def expand(q: NarrowTensor, size: Sequence[int]) -> NarrowTensor:
    """Return ``q`` repeated along axes of length one and along new leading axes, without copying."""
    new = len(size) - q.ndim
    if any(length < 0 for length in size[: max(new, 0)]):
        raise ArgumentError(f"{q} cannot be expanded to {tuple(size)}: give each new axis its length")
    shape = [q.shape[d - new] if length == -1 else length for d, length in enumerate(size)]
    axis = q.axis + new
    if new < 0 or not q.ndim or shape[axis] != q.shape[q.axis]:
        raise ArgumentError(
            f"{q} cannot be expanded to {tuple(size)}: its block axis keeps its length; call .dequantize() "
            "first"
        )
    pairs = zip(q.shape, shape[new:], strict=True)
    if not all(have == length or (have == 1 and length >= 0) for have, length in pairs):
        raise ArgumentError(
            f"{q} cannot be expanded to {tuple(size)}: only axes of length one are repeated; give the others "
            "their length, or -1"
        )
    others = [*shape[:axis], *shape[axis + 1 :]]
    return per_line(q, shape, axis, lambda part: part.expand(*others, part.shape[-1]))


def _reshaped(q: NarrowTensor, shape: Sequence[int], axis: int) -> NarrowTensor:
    others = [*shape[:axis], *shape[axis + 1 :]]
    try:
        return per_line(q, shape, axis, lambda part: part.view(*others, part.shape[-1]))
    except RuntimeError as error:  # torch.reshape goes by the strides, and copies first
        raise ArgumentError(
            f"view size is not compatible: {q} with strides {q.stride()} cannot be seen in the shape "
            f"{tuple(shape)} without a copy: use .reshape(...) instead"
        ) from error
