"""Products of packed integers with vectors rounded to int8; kernels/reference/gemv/int8.py defines them."""

from __future__ import annotations

from functools import lru_cache

import numpy as np
import torch

from fewbits.formats import Element, Format, Group, values
from fewbits.graphs import constant_in_graphs
from fewbits.kernels.bits.options import options
from fewbits.kernels.portable.dequantize.dequantize import dequantize
from fewbits.kernels.portable.quantize.quantize import quantize
from fewbits.kernels.reference.gemv.int8 import ACTIVATION

_BLOCK, _LANES = 32, 16
_LARGEST = {4: 31, 8: 128}  # integers of elements of so many bits that compiled kernels multiply

Parts = tuple[torch.Tensor | None, ...]


def rounded(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return ``x``, (batch, n) float32, as integers, (batch, n), and a scale for each 32, (batch, blocks)."""
    codes, scales = quantize(x, ACTIVATION, 1, options(ACTIVATION), None)
    blocks = -(-x.shape[1] // _BLOCK)
    of_blocks = ACTIVATION.groups.scales
    assert of_blocks is not None
    return (
        _decoded(codes, ACTIVATION.element, *x.shape),
        _decoded(scales, of_blocks.element, x.shape[0], blocks),
    )


def product(x: torch.Tensor, parts: Parts, format: Format, lines: int) -> torch.Tensor:
    """Return the (batch, lines) products of ``x`` in int8 with a W that :func:`holds_integers`, float32.

    Args:
        x: (batch, n) float32.
        parts: codes, scales, shifts and outer scales of W, (lines, n), with its blocks along n.
        format: of W.
        lines: of W.
    """
    n, unit = x.shape[1], format.element.finest_step
    (of_vectors, x_scales), (codes, scales, _, outer) = rounded(x), parts
    assert codes is not None
    of_lines = _decoded(codes, format.element, lines, n) / unit  # a power of two
    # Sums of a block are below 2^24, and no integer has more than eight bits: exact in any order, and by
    # whatever narrower type a device may multiply float32 in under the settings of torch.
    exact = torch.bmm(_blocks_first(of_vectors), _blocks_first(of_lines).mT)
    of_x = (x_scales * unit).t().unsqueeze(-1)  # (blocks, batch, 1)
    scale = of_x if scales is None else _of_blocks(scales, format.groups.scales, lines, n) * of_x
    # By way of float64, which holds the product of two float32: no compiler can join the rounding of the
    # product to that of the sum.
    products = (exact.double() * scale.double()).float()
    filled = torch.nn.functional.pad(products, (0, 0, 0, 0, 0, -len(products) % _LANES))
    lanes = filled.new_zeros((_LANES, *filled.shape[1:]))
    for step in filled.unflatten(0, (len(filled) // _LANES, _LANES)).unbind(0):
        lanes = lanes + step
    while len(lanes) > 1:
        lanes = lanes[: len(lanes) // 2] + lanes[len(lanes) // 2 :]
    return lanes[0] if outer is None else lanes[0] * outer.t()


@constant_in_graphs
@lru_cache(maxsize=256)
def holds_integers(format: Format) -> bool:
    """Return whether :func:`product` multiplies the elements of a format, as integers of four or eight bits.

    A scale of it must serve whole blocks of 32 values, and an integer of eight bits be its own code.
    """
    element, (_, scales, shifts, _) = format.element, format.groups
    if element.grid is None or shifts is not None or element.bits not in _LARGEST:
        return False
    size = None if scales is None else scales.size
    if isinstance(size, int) and (size < _BLOCK or size & (size - 1)):
        return False
    integers = values(element) / element.finest_step
    if not (np.abs(integers) <= _LARGEST[element.bits]).all():  # NaN is not
        return False
    codes = np.arange(len(integers))
    return element.bits == 4 or bool((integers == np.where(codes > 127, codes - 256, codes)).all())


def _of_blocks(scales: torch.Tensor, group: Group | None, lines: int, n: int) -> torch.Tensor:
    """Return the scale of each 32 values of W, or the one that a line or all have, (blocks, 1, lines)."""
    assert group is not None
    rows, count = scales.shape[0], 1 if isinstance(group.size, str) else -(-n // group.size)
    found = _decoded(scales, group.element, rows, count)
    if isinstance(group.size, int) and group.size > _BLOCK:
        found = found.repeat_interleave(group.size // _BLOCK, 1)[:, : -(-n // _BLOCK)]
    return found.t().unsqueeze(1)


def _decoded(codes: torch.Tensor, element: Element, lines: int, n: int) -> torch.Tensor:
    return dequantize((codes, None, None, None), element, (lines, n), 1, torch.float32)


def _blocks_first(x: torch.Tensor) -> torch.Tensor:
    """Return ``x``, (rows, n), as (blocks, rows, 32), zeros at the end."""
    blocks = -(-x.shape[1] // _BLOCK)
    padded: torch.Tensor = torch.nn.functional.pad(x, (0, blocks * _BLOCK - x.shape[1]))
    return padded.reshape(len(x), blocks, _BLOCK).movedim(1, 0)
