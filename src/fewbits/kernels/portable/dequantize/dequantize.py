"""From codes and scales to numbers, by plain operations of torch.

The multiplications are those of kernels/reference/dequantize, in float64. The product is rounded to float32,
and from there to a narrower dtype; in float64 it stays as it is.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from fewbits.formats import Format, Group
from fewbits.formats.format import Size
from fewbits.kernels.bits.layout import groups, moved
from fewbits.kernels.portable.values.blocks import cut
from fewbits.kernels.portable.values.elements import decode
from fewbits.kernels.portable.values.floats import SINGLE, of_bits, single
from fewbits.kernels.portable.values.packing import unpack
from fewbits.kernels.portable.values.pieces import in_pieces
from fewbits.kernels.portable.values.scales import multiplier, wide

Tensor = torch.Tensor


def dequantize(
    parts: Sequence[Tensor | None], format: Format, shape: tuple[Any, ...], axis: int, dtype: torch.dtype
) -> Tensor:
    """Return the values of packed codes, scales, shifts and outer scales, in ``dtype`` on their device."""
    codes, scales, shifts, outer = parts
    assert codes is not None
    if not codes.numel():
        return torch.empty(shape, dtype=dtype, device=codes.device)
    axis = axis % len(shape) if shape else 0
    where = cut(format, shape, axis)

    def lines(part: Tensor, size: Size) -> Tensor:
        """Return items that lie along the last axis as (before, items, behind)."""
        before, behind = (1, 1) if size == "tensor" else where.sides[::2]
        return part.reshape(before, behind, -1).transpose(1, 2)

    def numbers(part: Tensor | None, group: Group | None) -> Tensor | None:
        """Return the codes of a part as the blocks share them."""
        if part is None or group is None:
            return None
        codes = unpack(part, group.bits, groups(moved(shape, axis), group.size)[-1])
        return where.of_shared(lines(codes, group.size), group.size)

    def valued(codes: Tensor, multiplier: Tensor | None) -> Tensor:
        values = decode(format.element, codes)
        return rounded_to(values if multiplier is None else values * multiplier, dtype)

    elements = where.blocks(lines(unpack(codes, format.groups.codes.bits, moved(shape, axis)[-1]), 1))
    times, scaling = None, format.groups.scales
    if scaling is not None:
        codes_of_scales = numbers(scales, scaling)
        assert codes_of_scales is not None
        whole = None
        if outer is not None and format.groups.outer is not None:
            size = format.groups.outer.size
            whole = where.of_shared(lines(wide(outer.view(torch.int32), SINGLE), size), size)
        times = multiplier(scaling, codes_of_scales, numbers(shifts, format.groups.shifts), whole)
    return where.values(in_pieces(valued, elements, (times,), dtype)).reshape(shape).contiguous()


def rounded_to(values: Tensor, dtype: torch.dtype) -> Tensor:
    """Return float64 values rounded to a dtype: to float32 first where it is narrower."""
    return values if dtype == torch.float64 else of_bits(single(values), dtype)
