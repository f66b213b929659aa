"""Streams of N:M sparse lines by operations of torch; kernels/bits/nm_stream.py has the layout."""

from __future__ import annotations

import torch

from fewbits.formats.pattern import Pattern
from fewbits.kernels.bits.nm_stream import block_size, stream_blocks
from fewbits.kernels.portable.values.packing import pack, unpack


def compress(
    codes: torch.Tensor, pattern: Pattern, bits: int, n: int, zero: int, minus_zero: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the streams of lines, and which lines have a group of more than N that are not zero.

    :func:`fewbits.kernels.reference.nm.stream.compress` defines them.

    Args:
        codes: (lines, bytes), packed codes of ``n`` values of ``bits`` bits.
        pattern: how many of how many are kept; n is a multiple of the group.
        bits: of a code.
        n: values in a line.
        zero: the code of what is not kept.
        minus_zero: the code of zero with the other sign, or ``zero``.

    Returns:
        (lines, bytes) uint8 and (lines,) bool. The stream of a line that is marked is of no use.
    """
    groups = unpack(codes, bits, n).unflatten(-1, (n // pattern.group, pattern.group))
    rank = torch.where(groups == zero, 2, torch.where(groups == minus_zero, 1, 0))
    crowded = ((rank == 0).sum(-1) > pattern.keep).any(-1)
    # First what is not zero, then minus zero, then zero; among equals the first: no two have the same key.
    position = torch.arange(pattern.group, device=codes.device)
    chosen = (rank * pattern.group + position).sort(-1).values[..., : pattern.keep] % pattern.group
    places = chosen.sort(-1).values  # (lines, groups, keep)
    mask = torch.zeros_like(groups).scatter(-1, places, 1)
    kept, parts, first = groups.gather(-1, places), [], 0
    for count, size in _blocks(n, bits, pattern):
        last = first + count * size // pattern.group
        shape = (count, size // pattern.group)
        flags = mask[:, first:last].unflatten(1, shape).transpose(-1, -2).flatten(-2)
        held = kept[:, first:last].unflatten(1, shape).flatten(-2)
        parts.append(torch.cat((pack(flags, 1), pack(held, bits)), -1).flatten(-2))
        first = last
    return torch.cat(parts, -1) if parts else codes.new_empty((codes.shape[0], 0)), crowded


def expand(
    stream: torch.Tensor, pattern: Pattern, bits: int, n: int, zero: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the packed codes of streams, (lines, bytes), and which lines have a damaged mask, (lines,).

    :func:`fewbits.kernels.reference.nm.stream.expand` defines them. The codes of a line that is marked are of
    no use.
    """
    found, wrong, at = [], [], 0
    for count, size in _blocks(n, bits, pattern):
        groups = size // pattern.group
        _, of_mask, of_codes = next(stream_blocks(size, bits, pattern))
        blocks = stream[:, at : at + count * (of_mask + of_codes)].unflatten(1, (count, of_mask + of_codes))
        flags = (
            unpack(blocks[..., :of_mask], 1, size).unflatten(-1, (pattern.group, groups)).transpose(-1, -2)
        )
        wrong.append((flags.sum(-1) != pattern.keep).flatten(1).any(-1))
        held = unpack(blocks[..., of_mask:], bits, groups * pattern.keep)
        which = (flags.cumsum(-1) - 1).clamp(0, pattern.keep - 1)
        codes = held.unflatten(-1, (groups, pattern.keep)).gather(-1, which)
        found.append(torch.where(flags == 1, codes, zero).flatten(1))
        at += count * (of_mask + of_codes)
    if not found:
        lines = stream.shape[0]
        return stream.new_empty((lines, 0)), stream.new_zeros(lines, dtype=torch.bool)
    return pack(torch.cat(found, -1), bits), torch.stack(wrong).any(0)


def _blocks(n: int, bits: int, pattern: Pattern) -> list[tuple[int, int]]:
    """Return how many blocks of how many values there are: whole ones, and the rest of a line."""
    most = block_size(pattern)
    return [(count, size) for count, size in ((n // most, most), (1, n % most)) if count * size]
