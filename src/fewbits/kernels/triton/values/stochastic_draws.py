"""The random bits of stochastic rounding, by position, as kernels/reference/values/stochastic.py has them."""

from __future__ import annotations

from typing import Any

import triton
import triton.language as tl

_KEYED_BY = tl.constexpr(0x1BD11BDA)


@triton.jit
def _turned(x: tl.tensor, by: tl.constexpr) -> Any:
    return (x << by) | (x >> (32 - by))


@triton.jit
def _mixed(
    x0: tl.tensor, x1: tl.tensor, x2: tl.tensor, x3: tl.tensor, a: tl.constexpr, b: tl.constexpr
) -> Any:
    """Mix words 0 and 1 and words 2 and 3."""
    x0 = x0 + x1
    x1 = _turned(x1, a) ^ x0
    x2 = x2 + x3
    x3 = _turned(x3, b) ^ x2
    return x0, x1, x2, x3


@triton.jit
def _two(
    x0: tl.tensor,
    x1: tl.tensor,
    x2: tl.tensor,
    x3: tl.tensor,
    a: tl.tensor,
    b: tl.tensor,
    c: tl.tensor,
    d: tl.tensor,
) -> Any:
    """Mix neighbours, then each even word with the odd one before it."""
    x0, x1, x2, x3 = _mixed(x0, x1, x2, x3, a, b)
    x0, x3, x2, x1 = _mixed(x0, x3, x2, x1, c, d)
    return x0, x1, x2, x3


@triton.jit
def _words(x0: tl.tensor, x1: tl.tensor, k0: tl.tensor, k1: tl.tensor, rounds: tl.constexpr) -> Any:
    """Return the four words of Threefry-4x32 with 12 or 13 rounds; the upper half of counter and key is 0."""
    k4 = k0 ^ k1 ^ _KEYED_BY
    zero = tl.zeros_like(x0)
    x0, x1, x2, x3 = x0 + k0, x1 + k1, zero, zero
    x0, x1, x2, x3 = _two(x0, x1, x2, x3, 10, 26, 11, 21)
    x0, x1, x2, x3 = _two(x0, x1, x2, x3, 13, 27, 23, 5)
    x0, x3 = x0 + k1, x3 + k4 + 1  # keys 1, 2, 3, 4, of which 2 and 3 are zero
    x0, x1, x2, x3 = _two(x0, x1, x2, x3, 6, 20, 17, 11)
    x0, x1, x2, x3 = _two(x0, x1, x2, x3, 25, 10, 18, 20)
    x2, x3 = x2 + k4, x3 + k0 + 2  # keys 2, 3, 4, 0
    x0, x1, x2, x3 = _two(x0, x1, x2, x3, 10, 26, 11, 21)
    x0, x1, x2, x3 = _two(x0, x1, x2, x3, 13, 27, 23, 5)
    x1, x2, x3 = x1 + k4, x2 + k0, x3 + k1 + 3  # keys 3, 4, 0, 1
    if rounds == 13:
        x0, x1, x2, x3 = _mixed(x0, x1, x2, x3, 6, 20)
    return x0, x1, x2, x3


@triton.jit
def draws_in_order(
    first: tl.tensor, seed_low: tl.tensor, seed_high: tl.tensor, rows: tl.constexpr, width: tl.constexpr
) -> Any:
    """Return the draws of 16 bits of (rows, width) positions in order, ``first`` and on, a multiple of 128.

    A counter has four words of two draws each: what lies 16 places behind is not computed anew.
    """
    counters: tl.constexpr = rows * width // 8
    counter = first // 8 + tl.arange(0, counters)
    high = (counter.to(tl.int64) >> 32).to(tl.uint32)
    k0, k1 = seed_low.to(tl.uint32), seed_high.to(tl.uint32)
    x0, x1, x2, x3 = _words(counter.to(tl.uint32), high, k0, k1, 12)
    words = tl.join(tl.join(x0, x2), tl.join(x1, x3))
    by_word = tl.permute(tl.reshape(words, [counters // 16, 16, 4]), [0, 2, 1])
    halves = tl.permute(tl.join(by_word & 0xFFFF, by_word >> 16), [0, 1, 3, 2])
    return tl.reshape(halves, [rows, width])


@triton.jit
def draws(positions: tl.tensor, seed_low: tl.tensor, seed_high: tl.tensor, random_bits: tl.constexpr) -> Any:
    """Return uniform integers of ``random_bits`` bits as uint32, of the positions' shape."""
    together: tl.constexpr = 64 if random_bits == 32 else 128
    counter = (positions // together) * 16 + positions % 16
    low = counter.to(tl.uint32)
    high = (counter.to(tl.int64) >> 32).to(tl.uint32)
    k0, k1 = seed_low.to(tl.uint32), seed_high.to(tl.uint32)
    x0, x1, x2, x3 = _words(low, high, k0, k1, 13 if random_bits == 32 else 12)
    # One value takes one of the words: a neighbour of 16 or more places away computes the others anew.
    which = (positions % together) // (together // 4)
    word = tl.where(which == 0, x0, tl.where(which == 1, x1, tl.where(which == 2, x2, x3)))
    if random_bits == 16:
        word = tl.where(positions // 16 % 2 == 0, word & 0xFFFF, word >> 16)
    return word
