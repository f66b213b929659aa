"""Reproducible initial values, by exact operations of torch: sums of int32 wrap around."""

from __future__ import annotations

import torch

from fewbits.kernels.reference.values.threefry import KEYED_BY, ROTATIONS, ROUNDS

_LOW = 0xFFFFFFFF


def counter_uniform(seed: int, position: int, n: int, unit: float, device: torch.device) -> torch.Tensor:
    """Return float32 ``(n,)`` as kernels/reference/values/counter_uniform.py defines."""
    first, last = position // 64 * 16, (position + n + 63) // 64 * 16
    counter = torch.arange(first, last, device=device)
    words = [
        _int32(counter),
        _int32(counter >> 32),
        *torch.zeros(2, len(counter), dtype=torch.int32, device=device),
    ]
    drawn = torch.stack(_threefry(words, (seed & _LOW, seed >> 32, 0, 0)), 1)
    # 16 counters in a row are 64 draws: all their first words, then their second ones.
    flat = drawn.reshape(-1, 16, 4).transpose(1, 2).reshape(-1)[position % 64 :][:n]
    odd = 2 * (flat >> 8 & 0xFFFFFF) + 1 - (1 << 24)
    return odd.float() * torch.tensor(unit, device=device)


def _int32(x: torch.Tensor) -> torch.Tensor:
    x = x & _LOW
    return torch.where(x > 0x7FFFFFFF, x - (1 << 32), x).int()


def _signed(word: int) -> int:
    return word - (1 << 32) if word >> 31 else word


def _threefry(x: list[torch.Tensor], key: tuple[int, int, int, int]) -> list[torch.Tensor]:
    keys = [_signed(k) for k in (*key, key[0] ^ key[1] ^ key[2] ^ key[3] ^ KEYED_BY)]
    x = [word + k for word, k in zip(x, keys, strict=False)]
    for done in range(ROUNDS):
        for even, by in zip((0, 2), ROTATIONS[done % 8], strict=True):
            odd = (even + (1 if done % 2 == 0 else 3)) % 4
            x[even] = x[even] + x[odd]
            turned = x[odd] << by | x[odd] >> (32 - by) & (1 << by) - 1  # the shift of int32 keeps the sign
            x[odd] = turned ^ x[even]
        if done % 4 == 3:
            turn = done // 4 + 1
            x = [x[i] + keys[(turn + i) % 5] for i in range(4)]
            x[3] = x[3] + turn
    return x
