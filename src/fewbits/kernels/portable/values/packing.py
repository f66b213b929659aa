"""Codes to packed bits and back by arithmetic on bytes: what :mod:`fewbits.kernels.bits.packing` does.

As few codes as fill whole bytes are a group: eight, or fewer where their width has a common divisor with
eight. Each byte of a group, and each code, is then one sum of shifted parts, the same in all groups.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from fewbits.kernels.bits.packing import line_bytes

_INT32_HOLDS = 24  # bits of a code that may be shifted by seven more


def pack(codes: torch.Tensor, bits: int) -> torch.Tensor:
    """Return (..., n) integers below 2^bits, 1 to 32 bits each, as (..., ceil(n * bits / 8)) bytes."""
    n, together = codes.shape[-1], _together(bits)
    padded = torch.nn.functional.pad(codes.to(code_dtype(bits)), (0, -n % together))
    members = padded.unflatten(-1, (-(-n // together), together)).unbind(-1)
    starts = [bits * i for i in range(together)]
    octets = [_sum_at(members, starts, bits, 8 * i, 8).byte() for i in range(bits * together // 8)]
    return torch.stack(octets, -1).flatten(-2)[..., : line_bytes(n, bits)]


def unpack(packed: torch.Tensor, bits: int, count: int) -> torch.Tensor:
    """Return the (..., count) codes of :func:`pack`, in :func:`code_dtype`."""
    together = _together(bits)
    width = bits * together // 8  # bytes of a group
    groups = -(-count // together)
    missing = groups * width - line_bytes(count, bits)
    padded = torch.nn.functional.pad(packed, (0, missing)).to(code_dtype(bits))
    octets = padded.unflatten(-1, (groups, width)).unbind(-1)
    starts = [8 * i for i in range(width)]
    codes = [_sum_at(octets, starts, 8, bits * i, bits) for i in range(together)]
    return torch.stack(codes, -1).flatten(-2)[..., :count]


def code_dtype(bits: int) -> torch.dtype:
    """Return the type of unpacked codes, which holds them without a sign and can be computed with."""
    return torch.int32 if bits <= _INT32_HOLDS else torch.int64


def _together(bits: int) -> int:
    """Return the fewest codes that fill whole bytes."""
    return 8 // min(bits & -bits, 8)  # not math.gcd, which no graph can hold


def _sum_at(
    parts: Sequence[torch.Tensor], starts: Sequence[int], width: int, at: int, bits: int
) -> torch.Tensor:
    """Return ``bits`` bits from bit ``at`` on of parts of ``width`` bits, which begin at ``starts``."""
    total: torch.Tensor | None = None
    for part, start in zip(parts, starts, strict=True):
        if start + width > at and start < at + bits:
            shifted = part << start - at if start >= at else part >> at - start
            total = shifted if total is None else total | shifted
    assert total is not None
    return total & (1 << bits) - 1
