"""Stochastic rounding: the draws of kernels/reference/values/stochastic.py, and what they round up."""

from __future__ import annotations

import torch

from fewbits.kernels.portable.values.threefry import words_of
from fewbits.kernels.reference.values.threefry import ROUNDS, ROUNDS_OF_HALVES

Tensor = torch.Tensor


def draws(n: int, seed: int, random_bits: int, device: torch.device) -> Tensor:
    """Return ``(n,)`` draws for the positions from 0 on: int32 of 16 bits, or int64 of 32."""
    if random_bits == 32:
        words = words_of(0, (n + 63) // 64 * 16, seed, ROUNDS, device)
        return words.reshape(4, -1, 16).transpose(0, 1).reshape(-1)[:n].to(torch.int64) & 0xFFFFFFFF
    words = words_of(0, (n + 127) // 128 * 16, seed, ROUNDS_OF_HALVES, device).reshape(4, -1, 16)
    halves = torch.stack((words & 0xFFFF, words >> 16 & 0xFFFF), 2)
    return halves.transpose(0, 1).reshape(-1)[:n]


def dropped_bits_go_up(dropped: Tensor, shift: Tensor, draws: Tensor, random_bits: int) -> Tensor:
    """Return which integers are rounded up: those whose ``shift`` low bits, ``dropped``, are removed."""
    if random_bits == 32:
        dropped, shift = dropped.to(torch.int64), shift.to(torch.int64)
    most = 8 * dropped.element_size() - 1
    cut = dropped << (random_bits - shift).clamp(min=0) >> (shift - random_bits).clamp(0, most)
    return cut + draws >= 1 << random_bits


def goes_up(fraction: Tensor, draws: Tensor, random_bits: int) -> Tensor:
    """Return which values are rounded up, each ``fraction``, float64, of the way to the upper neighbour."""
    one = 2.0**random_bits
    return torch.floor(fraction * one) + draws >= one
