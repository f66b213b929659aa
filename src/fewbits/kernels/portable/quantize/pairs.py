"""Numbers in bfloat16 whose pairs share a shift, two in a word of 32 bits: in a graph for the CPU.

The neighbours of a pair lie in one vector, where Inductor 2.13 reaches them only lane by lane. As words, the
first of each pair fill one vector and the second ones another: the larger of two is one operation, and a
bfloat16 in the upper half of 32 bits is a float32.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch.fx.experimental.symbolic_shapes import statically_known_true

from fewbits.formats import Format
from fewbits.kernels.bits.options import Options
from fewbits.kernels.portable.values.blocks import Cut
from fewbits.kernels.portable.values.floats import SINGLE, to_bfloat16
from fewbits.kernels.portable.values.scales import Scales, scales_of

Tensor = torch.Tensor

_UPPER, _LOWER = -1 << 16, (1 << 16) - 1


def lies_in_pairs(x: Tensor, where: Cut, chosen: Options) -> bool:
    """Return whether every pair of ``x`` is a word of memory, and nothing is drawn for each value."""
    if where.sub != 2 or x.dtype != torch.bfloat16 or chosen.rounding == "stochastic":
        return False
    _, n, behind = where.sides
    return statically_known_true(n % 2 == 0) and statically_known_true(behind == 1)


def fake_quantize_pairs(
    reals: Tensor,
    format: Format,
    where: Cut,
    chosen: Options,
    amax: float | None,
    rounded: Callable[[Tensor, Scales], Tensor],
) -> Tensor:
    """Return numbers in bfloat16 rounded to a format whose pairs share a shift.

    Args:
        reals: the numbers in float32; bfloat16 holds each.
        format: with scales and shifts that are powers of two, on a grid.
        where: how they are cut.
        chosen: how they are rounded.
        amax: the largest magnitude of all, where it is given.
        rounded: from bits of float32 and their scales to those of the values.
    """
    before, n, _ = where.sides
    # No compiler leaves this selection out. So the words are memory of the graph's own, aligned to them.
    halves = torch.where(reals.abs() <= torch.inf, reals, torch.nan).to(torch.bfloat16)
    # Read as float32: vectors of int32 come from memory in pieces that the processor waits for.
    words = halves.reshape(before, n // 2, 2).view(torch.float32).view(torch.int32)
    halved = Cut((before, n // 2, 1), where.flat, where.size // 2, 1)
    both = [halved.blocks(bits) for bits in (words << 16, words & _UPPER)]
    larger = torch.maximum(*(bits & SINGLE.magnitude for bits in both))
    scales = scales_of(larger, SINGLE, format, chosen, amax, halved, rounds_only=True)
    first, second = (to_bfloat16(rounded(bits, scales)) for bits in both)
    if scales.bad is not None:
        first, second = (torch.where(scales.bad, SINGLE.nan, bits) for bits in (first, second))
    words = first >> 16 & _LOWER | second & _UPPER
    assert scales.exponent is not None
    # A condition that always holds keeps this in the loop over blocks, as in values/pieces.py.
    words = torch.where(scales.exponent > -(1 << 20), words, 0)
    return halved.values(words).view(torch.bfloat16)
