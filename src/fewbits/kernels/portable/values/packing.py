"""Codes to packed bits and back: kernels/bits/packing.py by shifts.

The codes that together fill whole bytes, eight at most, lie at the same places of their bytes in each such
group. So each byte of a group, and each code, is one expression for all groups.
"""

from __future__ import annotations

from math import gcd

import torch

from fewbits.kernels.bits.packing import line_bytes

Tensor = torch.Tensor


def pack(codes: Tensor, bits: int) -> Tensor:
    """Return (..., n) codes as (..., ceil(n * bits / 8)) bytes."""
    n, codes = codes.shape[-1], codes.to(_wide(bits))
    together, width = _group(bits)
    if together > 1:
        codes = torch.nn.functional.pad(codes, (0, -n % together))
    groups = codes.unflatten(-1, (-(-n // together), together))
    octets = []
    for octet in range(width):
        places = [(i, i * bits - 8 * octet) for i in range(together)]
        parts = [_left(groups[..., i], by) for i, by in places if -bits < by < 8]
        whole = parts[0]
        for part in parts[1:]:
            whole = whole | part
        octets.append((whole & 255).to(torch.uint8))
    return torch.stack(octets, -1).flatten(-2)[..., : line_bytes(n, bits)]


def unpack(packed: Tensor, bits: int, count: int) -> Tensor:
    """Return the (..., count) codes of :func:`pack`, int32, or int64 beyond 22 bits."""
    together, width = _group(bits)
    groups = -(-count // together)
    padded = torch.nn.functional.pad(packed, (0, groups * width - packed.shape[-1]))
    octets = padded.unflatten(-1, (groups, width))
    codes = []
    for i in range(together):
        places = [(octet, 8 * octet - i * bits) for octet in range(width)]
        parts = [_left(octets[..., octet].to(_wide(bits)), by) for octet, by in places if -8 < by < bits]
        whole = parts[0]
        for part in parts[1:]:
            whole = whole | part
        codes.append(whole & (1 << bits) - 1)
    return torch.stack(codes, -1).flatten(-2)[..., :count]


def _group(bits: int) -> tuple[int, int]:
    """Return how many codes fill how many whole bytes."""
    common = gcd(bits, 8)
    return 8 // common, bits // common


def _wide(bits: int) -> torch.dtype:
    """Return a type that holds a code and the bits that its first byte has before it."""
    return torch.int32 if bits <= 22 else torch.int64


def _left(x: Tensor, by: int) -> Tensor:
    return x << by if by > 0 else x >> -by if by < 0 else x
