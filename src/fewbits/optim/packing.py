"""Tensors that are held between steps, packed in the format that a recipe gives them."""

from __future__ import annotations

from typing import Any

import torch

from fewbits.formats import parse
from fewbits.optim import sharded
from fewbits.recipes import RoleFormat
from fewbits.recipes.rounding import fresh_seed, round_as
from fewbits.tensor import NarrowTensor, quantize
from fewbits.tensor.narrow.tensor import PARTS
from fewbits.tensor.narrow.torch_dtypes import DTYPE_OF


def torch_dtype(target: RoleFormat) -> torch.dtype | None:
    """Return the floating-point dtype of two bytes or more that has the values of the format, or None."""
    dtype = DTYPE_OF.get(target.format)
    return dtype if dtype is not None and dtype.itemsize > 1 else None


def round_values(x: torch.Tensor, target: RoleFormat, rounding: str | None = None) -> torch.Tensor:
    """Return float32 ``x`` with its values rounded as ``target`` says, or with another rounding."""
    chosen, dtype = rounding or target.rounding, torch_dtype(target)
    if dtype is not None and chosen == "nearest_even" and target.shift is None:
        return x.to(dtype).float()  # PyTorch's own conversion takes a tenth of the time
    return round_as(x, target, rounding=chosen)


def pack(x: torch.Tensor, target: RoleFormat | None, *, overflow: str | None = "saturate") -> torch.Tensor:
    """Return float32 ``x`` as it is held: itself, a 16-bit tensor of torch, or packed along its last axis.

    ``overflow`` is that of :func:`fewbits.quantize`; the 16-bit types go to infinity.
    """
    if target is None:
        return x
    dtype = torch_dtype(target)
    if dtype is not None:
        return round_values(x, target).to(dtype)
    mine, amax = sharded.packable(x, target.format)
    return quantize(
        mine,
        target.format,
        rounding=target.rounding,
        scale_rule=target.scale_rule,
        overflow=overflow,
        generator=fresh_seed(target.rounding),
        amax=amax,
    )


def to_plain(x: torch.Tensor) -> torch.Tensor | dict[str, Any]:
    """Return what torch.save and other checkpoints take: a packed tensor as a dict of its parts."""
    if not isinstance(x, NarrowTensor):
        return x
    parts = {name: part for name, part in zip(PARTS, x.pieces, strict=True) if part is not None}
    return {**parts, "format": str(x.format), "shape": tuple(x.shape), "axis": x.axis}


def from_plain(value: Any) -> Any:
    """Return the tensor that :func:`to_plain` was called with; any other value is returned unchanged.

    Raises:
        ArgumentError: the parts do not fit each other.
        FormatError: there is no such format.
    """
    if not isinstance(value, dict) or "codes" not in value:
        return value
    codes, *others = (value.get(name) for name in PARTS)
    assert codes is not None
    return NarrowTensor.from_parts(
        codes,
        *others,
        format=parse(value["format"]),
        shape=tuple(value["shape"]),
        axis=value["axis"],
        dtype=torch.float32,
    )


def unpack(x: torch.Tensor, like: torch.Tensor | None = None) -> torch.Tensor:
    """Return the float32 values of what :func:`pack` returned, sharded like ``like`` if that is."""
    if not isinstance(x, NarrowTensor):
        return x.float()
    return x.dense() if like is None else sharded.of_one(x.dense(), like)


def bytes_of(x: torch.Tensor) -> int:
    """Return the bytes that a tensor holds."""
    return sharded.local(x).nbytes  # a NarrowTensor counts its packed parts
