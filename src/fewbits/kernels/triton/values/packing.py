"""Codes to packed bits and back: kernels/bits/packing.py on a device."""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl

from fewbits.kernels.triton.values.spec import codes_in_unit

_BYTES = 1024  # of packed bits that a program writes: eight for each thread


@triton.jit
def store_codes(
    out: tl.tensor,
    codes: tl.tensor,
    inside: tl.tensor,
    line: tl.tensor,
    first: tl.tensor,
    count: tl.tensor,
    bits: tl.constexpr,
    unit: tl.constexpr,
) -> None:
    """Store codes, (rows, columns), zero where not ``inside``, as items of their lines.

    Args:
        out: where packed lines lie, or where ``unit`` is 0 an int32 for each item, which pack_kernel packs.
        codes: int32.
        inside: which of them exist.
        line: of each row.
        first: the item of the line that the first column is.
        count: items of a line.
        bits: of a code.
        unit: how many codes fill whole bytes.
    """
    rows: tl.constexpr = codes.shape[0]
    columns: tl.constexpr = codes.shape[1]
    if unit == 0:
        item = first[:, None] + tl.arange(0, columns)[None, :]
        tl.store(out + line[:, None] * count + item, codes, mask=inside)
    else:
        line_bytes = (count * bits + 7) // 8
        units: tl.constexpr = columns // unit
        octets: tl.constexpr = unit * bits // 8
        word, some = codes, inside
        if unit > 1:
            kind: tl.constexpr = tl.int32 if unit * bits < 32 else tl.int64
            turn = tl.arange(0, unit)[None, None, :] * bits
            word = tl.sum(tl.reshape(codes, [rows, units, unit]).to(kind) << turn, axis=2)
            some = tl.max(tl.reshape(inside.to(tl.int32), [rows, units, unit]), axis=2) > 0
        start = (first[:, None] + tl.arange(0, units)[None, :] * unit) * bits // 8
        for k in tl.static_range(octets):
            octet = ((word >> (8 * k)) & 255).to(tl.uint8)
            tl.store(
                out + line[:, None] * line_bytes + start + k, octet, mask=some & (start + k < line_bytes)
            )


@triton.jit
def store_rows(
    out: tl.tensor,
    codes: tl.tensor,
    exists: tl.tensor,
    row: tl.tensor,
    bits: tl.constexpr,
    unit: tl.constexpr,
) -> None:
    """Store codes, (rows, columns), whose rows lie one behind the other in whole bytes."""
    rows: tl.constexpr = codes.shape[0]
    columns: tl.constexpr = codes.shape[1]
    units: tl.constexpr = columns // unit
    octets: tl.constexpr = unit * bits // 8
    word = codes
    if unit > 1:
        kind: tl.constexpr = tl.int32 if unit * bits < 32 else tl.int64
        turn = tl.arange(0, unit)[None, None, :] * bits
        word = tl.sum(tl.reshape(codes, [rows, units, unit]).to(kind) << turn, axis=2)
    at = row[:, None] * (units * octets) + tl.arange(0, units)[None, :] * octets
    there = tl.broadcast_to(exists[:, None], [rows, units])
    for k in tl.static_range(octets):
        tl.store(out + at + k, ((word >> (8 * k)) & 255).to(tl.uint8), mask=there)


@triton.jit
def load_rows(
    packed: tl.tensor,
    begin: tl.tensor,
    end: tl.tensor,
    exists: tl.tensor,
    bits: tl.constexpr,
    unit: tl.constexpr,
    columns: tl.constexpr,
) -> Any:
    """Return int32 codes, (rows, columns), each byte read once.

    Args:
        packed: where packed lines lie.
        begin: the byte of each row in which its first code begins, (rows,).
        end: the byte behind its last one; codes from there on are zero. None where all columns are there.
        exists: which rows; the codes of others are zero.
        bits: of a code.
        unit: how many codes fill whole bytes.
        columns: of a row.
    """
    rows: tl.constexpr = begin.shape[0]
    units: tl.constexpr = columns // unit
    octets: tl.constexpr = unit * bits // 8
    kind: tl.constexpr = tl.int32 if unit * bits <= 32 else tl.int64
    at = begin[:, None] + tl.arange(0, units)[None, :] * octets
    there = tl.broadcast_to(exists[:, None], [rows, units])
    word = tl.zeros([rows, units], kind)
    for k in tl.static_range(octets):
        inside = there if end is None else there & (at + k < end[:, None])
        word = word | (tl.load(packed + at + k, mask=inside, other=0).to(kind) << (8 * k))
    if unit > 1:
        turn = tl.arange(0, unit)[None, None, :] * bits
        word = tl.reshape((word[:, :, None] >> turn) & ((1 << bits) - 1), [rows, columns])
    return word.to(tl.int32)


@triton.jit
def load_codes(
    packed: tl.tensor,
    inside: tl.tensor,
    line: tl.tensor,
    item: tl.tensor,
    count: tl.tensor,
    bits: tl.constexpr,
) -> Any:
    """Return int32 codes: the items of packed lines, zero where not ``inside``."""
    line_bytes = (count * bits + 7) // 8
    at = item * bits
    start, turn = at >> 3, at & 7
    # How many bytes a code may reach into.
    octets: tl.constexpr = 1 if 8 % bits == 0 else bits // 8 if bits % 8 == 0 else (bits + 14) // 8
    kind: tl.constexpr = tl.int32 if bits + 7 < 32 or bits == 32 else tl.int64
    word = tl.zeros_like(at).to(kind)
    for k in tl.static_range(octets):
        octet = tl.load(
            packed + line * line_bytes + start + k, mask=inside & (start + k < line_bytes), other=0
        )
        word = word | (octet.to(kind) << (8 * k))
    if bits < 32:
        word = ((word >> turn) & ((1 << bits) - 1)).to(tl.int32)
    return word


@triton.jit
def pack_kernel(
    codes: tl.tensor,
    out: tl.tensor,
    lines: tl.tensor,
    count: tl.tensor,
    bits: tl.constexpr,
    block: tl.constexpr,
) -> None:
    """Pack (lines, count) int32 codes into lines of bytes, each of which collects what reaches into it."""
    line_bytes = (count * bits + 7) // 8
    at = tl.program_id(0).to(tl.int64) * block + tl.arange(0, block)
    line, place = at // line_bytes, at % line_bytes
    first = 8 * place // bits
    octet = tl.zeros_like(at).to(tl.int32)
    for k in tl.static_range((bits + 6) // bits + 1):
        item = first + k
        up = (item * bits - 8 * place).to(tl.int32)
        here = (line < lines) & (item < count) & (up < 8)
        code = tl.load(codes + line * count + item, mask=here, other=0)
        octet = octet | tl.where(up >= 0, code << tl.maximum(up, 0), code >> tl.maximum(-up, 0))
    tl.store(out + at, (octet & 255).to(tl.uint8), mask=line < lines)


def unit_of(bits: int, size: int, width: int, count: int) -> int:
    """Return the unit by which programs pack codes themselves, 0 where they cannot.

    Args:
        bits: of a code.
        size: codes of a group, which has to begin on a byte unless it is the whole line.
        width: codes that a program holds side by side.
        count: codes of a line.
    """
    unit = codes_in_unit(bits)
    fits = unit * bits <= 64 and width % unit == 0 and (size % unit == 0 or size >= count)
    return unit if fits else 0


def pack(codes: torch.Tensor, out: torch.Tensor, count: int, bits: int) -> None:
    """Pack int32 codes, ``count`` for each line, into lines of bytes."""
    octets = out.numel()
    grid = (triton.cdiv(octets, _BYTES),)
    pack_kernel[grid](
        codes, out, codes.numel() // count, count, bits=bits, block=_BYTES, enable_fp_fusion=False
    )
