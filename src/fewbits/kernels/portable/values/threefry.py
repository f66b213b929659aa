"""The random generator Threefry 4x32 of kernels/reference/values/threefry.py; sums of int32 wrap around."""

from __future__ import annotations

import torch

from fewbits.kernels.reference.values.threefry import KEYED_BY, ROTATIONS

_LOW = 0xFFFFFFFF


def words_of(first: int, last: int, seed: int, rounds: int, device: torch.device) -> torch.Tensor:
    """Return int32 ``(4, last - first)``: four words for each counter, under the key ``seed``."""
    counter = torch.arange(first, last, device=device)
    low, high = _int32(counter), _int32(counter >> 32)
    nothing = torch.zeros_like(low)
    signed = seed - (1 << 64) if type(seed) is int and seed >> 63 else seed  # a symbol is signed
    key = torch.full((1,), signed, dtype=torch.int64, device=device)
    keys = [_int32(key), _int32(key >> 32), nothing[:1], nothing[:1]]
    return torch.stack(_threefry([low, high, nothing, nothing], keys, rounds))


def _int32(x: torch.Tensor) -> torch.Tensor:
    x = x & _LOW
    return torch.where(x > 0x7FFFFFFF, x - (1 << 32), x).int()


def _threefry(x: list[torch.Tensor], key: list[torch.Tensor], rounds: int) -> list[torch.Tensor]:
    keys = [*key, key[0] ^ key[1] ^ key[2] ^ key[3] ^ KEYED_BY]
    x = [word + k for word, k in zip(x, keys, strict=False)]
    for done in range(rounds):
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
