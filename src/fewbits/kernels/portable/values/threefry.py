"""The random generator Threefry 4x32 by exact operations of torch: sums of int32 wrap around."""

from __future__ import annotations

import torch

from fewbits.kernels.reference.values.threefry import KEYED_BY, ROTATIONS, ROUNDS

_LOW = 0xFFFFFFFF
_SIGN = 1 << 31


def words(first: int, last: int, seed: int, device: torch.device, rounds: int = ROUNDS) -> torch.Tensor:
    """Return the words of the counters from ``first`` to ``last`` under the key ``seed``, int32 (n, 4).

    :mod:`fewbits.kernels.reference.values.threefry` defines them.
    """
    counter = torch.arange(first, last, device=device)
    none = torch.zeros_like(counter, dtype=torch.int32)
    x = [_low(counter), _low(counter >> 32), none, none]
    # Tensors, since a graph may hold the seed as a symbol.
    low, high = (
        _low(torch.full((1,), word, dtype=torch.int64, device=device)) for word in (seed & _LOW, seed >> 32)
    )
    keys = [low, high, torch.zeros_like(low), torch.zeros_like(low), low ^ high ^ KEYED_BY]
    x = [word + k for word, k in zip(x, keys, strict=False)]
    for done in range(rounds):
        # Each even word takes a neighbour in: the next one, then the one before.
        for even, by in zip((0, 2), ROTATIONS[done % 8], strict=True):
            odd = (even + (1 if done % 2 == 0 else 3)) % 4
            x[even] = x[even] + x[odd]
            turned = x[odd] << by | x[odd] >> (32 - by) & (1 << by) - 1  # the shift of int32 keeps the sign
            x[odd] = turned ^ x[even]
        if done % 4 == 3:
            turn = done // 4 + 1
            x = [x[i] + keys[(turn + i) % 5] for i in range(4)]
            x[3] = x[3] + turn
    return torch.stack(x, 1)


def _low(x: torch.Tensor) -> torch.Tensor:
    """Return the lower 32 bits of int64 as int32 with those bits."""
    return (((x & _LOW) ^ _SIGN) - _SIGN).int()
