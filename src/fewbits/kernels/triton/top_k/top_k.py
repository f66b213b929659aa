"""The places of the largest magnitudes, equal to :mod:`fewbits.kernels.reference.top_k.top_k`.

The magnitude of rank k is found eight bits at a time, by counting values by their next bits; no count leaves
the device. Then the places above it, and as many of those equal to it as are left, are written in order.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl

_BLOCK = 2048  # values of a program: 16 for each of 128 threads
_DIGITS = 256


@triton.jit
def _keys(x: tl.tensor, at: tl.tensor, n: tl.tensor) -> Any:
    """Return magnitudes as integers that are ordered alike; -1 beyond the end."""
    v = tl.load(x + at, mask=at < n, other=0.0)
    if x.dtype.element_ty == tl.float32:
        key = v.to(tl.int32, bitcast=True) & 0x7FFFFFFF
    else:
        key = (v.to(tl.int16, bitcast=True) & 0x7FFF).to(tl.int32)
    return tl.where(at < n, key, -1)


@triton.jit
def count_kernel(
    x: tl.tensor, state: tl.tensor, counts: tl.tensor, n: tl.tensor, shift: tl.constexpr, block: tl.constexpr
) -> None:
    """Count values by the eight bits above ``shift``, of those whose upper bits are the ones in state[0]."""
    at = tl.program_id(0).to(tl.int64) * block + tl.arange(0, block)
    key = _keys(x, at, n)
    alike = ((key >> shift) >> 8) == tl.load(state)  # in two steps: no shift takes all 32 bits
    digit = (key >> shift) & 255
    tl.atomic_add(counts + digit, tl.full([block], 1, tl.int32), mask=alike & (at < n))


@triton.jit
def choose_kernel(state: tl.tensor, counts: tl.tensor, digits: tl.constexpr) -> None:
    """Add the next eight bits of the magnitude of rank state[1] to state[0], and lower the rank.

    The counts become zero again.
    """
    digit = tl.arange(0, digits)
    count = tl.load(counts + digit)
    rank = tl.load(state + 1)
    above = tl.sum(count, axis=0) - tl.cumsum(count, axis=0)  # values with larger digits
    chosen = (above < rank) & (above + count >= rank)
    found = tl.sum(tl.where(chosen, digit, 0), axis=0)
    tl.store(state + 1, rank - tl.sum(tl.where(chosen, above, 0), axis=0))
    tl.store(state, tl.load(state) * 256 + found)
    tl.store(counts + digit, tl.zeros([digits], tl.int32))


@triton.jit
def rank_kernel(
    x: tl.tensor, state: tl.tensor, above: tl.tensor, equal: tl.tensor, n: tl.tensor, block: tl.constexpr
) -> None:
    """Count the values of each block above the magnitude of rank k, and those equal to it."""
    at = tl.program_id(0).to(tl.int64) * block + tl.arange(0, block)
    key, last = _keys(x, at, n), tl.load(state)
    tl.store(above + tl.program_id(0), tl.sum((key > last).to(tl.int32), axis=0))
    tl.store(equal + tl.program_id(0), tl.sum((key == last).to(tl.int32), axis=0))


@triton.jit
def place_kernel(
    x: tl.tensor,
    state: tl.tensor,
    above: tl.tensor,
    equal: tl.tensor,
    places: tl.tensor,
    n: tl.tensor,
    block: tl.constexpr,
) -> None:
    """Write the places of a block; above and equal count what earlier blocks hold."""
    at = tl.program_id(0).to(tl.int64) * block + tl.arange(0, block)
    key, last, wanted = _keys(x, at, n), tl.load(state), tl.load(state + 1)
    larger, same = (key > last).to(tl.int32), (key == last).to(tl.int32)
    larger_before = tl.load(above + tl.program_id(0)) + tl.cumsum(larger, axis=0) - larger
    same_before = tl.load(equal + tl.program_id(0)) + tl.cumsum(same, axis=0) - same
    taken = (larger > 0) | ((same > 0) & (same_before < wanted))
    tl.store(places + larger_before + tl.minimum(same_before, wanted), at, mask=taken)


def top_k(x: torch.Tensor, k: int) -> torch.Tensor:
    """Return the places of the ``k`` values of largest magnitude, (k,) int64, in rising order.

    Args:
        x: (n,), float32, bfloat16 or float16, in C order; fewer than 2^31 values.
        k: 1 to n.
    """
    n, blocks = x.numel(), triton.cdiv(x.numel(), _BLOCK)
    state = torch.zeros(2, dtype=torch.int32, device=x.device)
    state[1:].fill_(k)  # a copy from the host would wait for the device
    counts = torch.zeros(_DIGITS, dtype=torch.int32, device=x.device)
    for shift in range(8 * x.element_size() - 8, -1, -8):
        count_kernel[(blocks,)](x, state, counts, n, shift=shift, block=_BLOCK, enable_fp_fusion=False)
        choose_kernel[(1,)](state, counts, digits=_DIGITS, enable_fp_fusion=False)
    found = torch.empty(2, blocks, dtype=torch.int32, device=x.device)
    rank_kernel[(blocks,)](x, state, found[0], found[1], n, block=_BLOCK, enable_fp_fusion=False)
    before = found.cumsum(1, dtype=torch.int32) - found
    places = torch.empty(k, dtype=torch.int64, device=x.device)
    place_kernel[(blocks,)](x, state, before[0], before[1], places, n, block=_BLOCK, enable_fp_fusion=False)
    return places
