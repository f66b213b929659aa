"""Stochastic rounding: the draws of kernels/reference/values/stochastic.py, and what they round up."""

from __future__ import annotations

import torch

from fewbits.kernels.portable.values.threefry import words
from fewbits.kernels.reference.values.threefry import ROUNDS, ROUNDS_OF_HALVES


def draws(n: int, seed: int, random_bits: int, device: torch.device, first: int = 0) -> torch.Tensor:
    """Return the draws of the positions from ``first`` on, (n,): int32 of 16 bits, int64 of 32 bits.

    :func:`fewbits.kernels.reference.values.stochastic.draws` defines them. The words of 16 counters in a row
    are the draws of 64 or 128 neighbours.
    """
    together = 64 if random_bits == 32 else 128
    start, end = first // together * 16, (first + n + together - 1) // together * 16
    drawn = words(start, end, seed, device, ROUNDS if random_bits == 32 else ROUNDS_OF_HALVES)
    by_word = drawn.unflatten(0, ((end - start) // 16, 16)).transpose(
        1, 2
    )  # all their first words, then their second ones
    if random_bits == 32:
        found: torch.Tensor = by_word.long() & 0xFFFFFFFF
    else:
        found = torch.stack((by_word & 0xFFFF, by_word >> 16 & 0xFFFF), 2)
    return found.reshape(-1)[first % together :][:n]


def dropped_bits_go_up(
    dropped: torch.Tensor, shift: torch.Tensor, draws: torch.Tensor, random_bits: int
) -> torch.Tensor:
    """Return which integers are rounded up: those whose ``shift`` low bits, ``dropped``, are removed."""
    if random_bits == 32:
        dropped, shift = dropped.to(torch.int64), shift.to(torch.int64)
    most = 8 * dropped.element_size() - 1
    cut = dropped << (random_bits - shift).clamp(min=0) >> (shift - random_bits).clamp(0, most)
    return cut + draws >= 1 << random_bits


def goes_up(fraction: torch.Tensor, draws: torch.Tensor, random_bits: int) -> torch.Tensor:
    """Return which values are rounded up, each ``fraction``, float64, of the way to the upper neighbour."""
    one = 2.0**random_bits
    return torch.floor(fraction * one) + draws >= one
