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
    counters = (_low(counter), _low(counter >> 32), none, none)
    # Tensors, since a graph may hold the seed as a symbol.
    low, high = (
        _low(torch.full((1,), word, dtype=torch.int64, device=device)) for word in (seed & _LOW, seed >> 32)
    )
    keys = [low, high, torch.zeros_like(low), torch.zeros_like(low), low ^ high ^ KEYED_BY]
    x = torch.stack([word + k for word, k in zip(counters, keys, strict=False)])
    # Two words each, which a round takes in pairs: less to call and to compile. A graph of Inductor with four
    # words by themselves is never done: it writes out a word anew wherever a round uses it.
    even, odd = x[0::2], x[1::2]
    for done in range(rounds):
        by = _filled(ROTATIONS[done % 8], device)
        # Each even word takes a neighbour in: the next one, then the one before.
        taken = odd if done % 2 == 0 else odd.flip(0)
        even = even + taken
        turned = taken << by | taken >> (32 - by) & (1 << by) - 1  # the shift of int32 keeps the sign
        odd = turned ^ even if done % 2 == 0 else (turned ^ even).flip(0)
        if done % 4 == 3:
            turn = done // 4 + 1
            even, odd = (
                two + torch.stack([keys[(turn + i) % 5] for i in places])
                for two, places in ((even, (0, 2)), (odd, (1, 3)))
            )
            odd = odd + _filled((0, turn), device)
    return torch.stack((even[0], odd[0], even[1], odd[1]), 1)


def _filled(two: tuple[int, int], device: torch.device) -> torch.Tensor:
    """Return two numbers one below the other; nothing is copied to the device."""
    return torch.stack([torch.full((1,), number, dtype=torch.int32, device=device) for number in two])


def _low(x: torch.Tensor) -> torch.Tensor:
    """Return the lower 32 bits of int64 as int32 with those bits."""
    return (((x & _LOW) ^ _SIGN) - _SIGN).int()
