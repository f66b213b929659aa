"""The blocks of GGUF: scales and items that lie side by side, in the order of ggml.

Each type turns the codes and scales of docs/layout.md into the bytes of ggml's blocks, and back; the values
are the same. The arrays have a block in each row.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from fewbits.formats import CATALOGUE, Block, Fixed, Float, Format, Lookup

Octets = NDArray[np.uint8]  # (blocks, bytes)

_FP16 = Float(5, 10, 15, "ieee")
_E2M1, _E4M3 = Float(2, 1), Float(4, 3, 7, "fn")
_DIGIT_SHIFTS = np.array([[0], [2], [4], [6]], np.uint8)


class BlockType(NamedTuple):
    """One type of ggml."""

    name: str
    format: Format
    values: int  # of a block
    scale_bytes: int  # of a block; 0: plain numbers
    code_bytes: int  # of a block, as docs/layout.md has them
    nbytes: int  # of a block, as ggml has it
    join: Callable[[Octets, Octets], Octets]  # codes, scales -> block
    split: Callable[[Octets], tuple[Octets, Octets]]  # block -> codes, scales


def _items(codes: Octets, bits: int) -> Octets:
    """Return the items of little-endian streams, one in each byte."""
    shifts = np.arange(0, 8, bits, dtype=np.uint8)
    items: Octets = (codes[..., None] >> shifts) & np.uint8((1 << bits) - 1)
    return items.reshape(len(codes), -1)


def _stream(items: Octets, bits: int) -> Octets:
    """Return the little-endian streams of items."""
    together = items.reshape(len(items), -1, 8 // bits) << np.arange(0, 8, bits, dtype=np.uint8)
    joined: Octets = np.bitwise_or.reduce(together, axis=-1)
    return joined


def _halves(codes: Octets, size: int) -> Octets:
    """Pair item j of each ``size`` with item j + size / 2, the first in the low half of a byte."""
    pairs = _items(codes, 4).reshape(len(codes), -1, 2, size // 2)
    joined: Octets = pairs[:, :, 0] | (pairs[:, :, 1] << np.uint8(4))
    return joined.reshape(len(codes), -1)


def _from_halves(octets: Octets, size: int) -> Octets:
    pairs: Octets = octets.reshape(len(octets), -1, 1, size // 2) >> np.array([[0], [4]], np.uint8)
    return _stream((pairs & np.uint8(15)).reshape(len(octets), -1), 4)


def _signs(codes: Octets) -> Octets:
    """Turn nibbles of two's complement into those of q + 8, and back."""
    return codes ^ np.uint8(0x88)


def _join_mxfp4(codes: Octets, scales: Octets) -> Octets:
    return np.concatenate([scales, _halves(codes, 32)], axis=1)


def _split_mxfp4(blocks: Octets) -> tuple[Octets, Octets]:
    return _from_halves(blocks[:, 1:], 32), blocks[:, :1]


def _join_nvfp4(codes: Octets, scales: Octets) -> Octets:
    return np.concatenate([scales, _halves(codes, 16)], axis=1)


def _split_nvfp4(blocks: Octets) -> tuple[Octets, Octets]:
    stored = blocks[:, :4]
    # ggml has no sign here, and reads 0x7F as zero, which E4M3 has for NaN.
    scales = np.where(stored == 0x7F, np.uint8(0), stored & np.uint8(0x7F))
    return _from_halves(blocks[:, 4:], 16), scales


def _join_q4_0(codes: Octets, scales: Octets) -> Octets:
    return np.concatenate([scales, _halves(_signs(codes), 32)], axis=1)


def _split_q4_0(blocks: Octets) -> tuple[Octets, Octets]:
    return _signs(_from_halves(blocks[:, 2:], 32)), blocks[:, :2]


def _join_q8_0(codes: Octets, scales: Octets) -> Octets:
    return np.concatenate([scales, codes], axis=1)


def _split_q8_0(blocks: Octets) -> tuple[Octets, Octets]:
    return blocks[:, 2:], blocks[:, :2]


def _join_digits(codes: Octets, scales: Octets) -> Octets:
    """Pack the digits 0 to 3 of TQ2_0: of each 128, four that are 32 apart share a byte."""
    digits = _items(codes, 2).reshape(-1, 2, 4, 32) << _DIGIT_SHIFTS
    packed: Octets = np.bitwise_or.reduce(digits, axis=2).reshape(len(codes), -1)
    return np.concatenate([packed, scales], axis=1)


def _split_digits(blocks: Octets) -> tuple[Octets, Octets]:
    digits: Octets = (blocks[:, :-2].reshape(-1, 2, 1, 32) >> _DIGIT_SHIFTS) & np.uint8(3)
    return _stream(digits.reshape(len(blocks), -1), 2), blocks[:, -2:]


def _join_tq2_0(codes: Octets, scales: Octets) -> Octets:
    return _join_digits(_stream((_items(codes, 2) + np.uint8(1)) & np.uint8(3), 2), scales)


def _split_tq2_0(blocks: Octets) -> tuple[Octets, Octets]:
    digits, scales = _split_digits(blocks)
    return _stream((_items(digits, 2) - np.uint8(1)) & np.uint8(3), 2), scales


def _join_tq1_0(codes: Octets, scales: Octets) -> Octets:
    """Let the package pack the digits 0, 1, 2 of -1, 0, 1, and put the scale behind them."""
    import gguf

    values = _items(codes, 2).astype(np.float32) - 1
    packed: Octets = gguf.quants.quantize(values, gguf.GGMLQuantizationType.TQ1_0)
    return np.concatenate([packed[:, :-2], scales], axis=1)


def _split_tq1_0(blocks: Octets) -> tuple[Octets, Octets]:
    import gguf

    ones = np.broadcast_to(np.array([1], "<f2").view(np.uint8), (len(blocks), 2))
    scaled_by_one = np.concatenate([blocks[:, :-2], ones], axis=1)
    values = gguf.quants.dequantize(scaled_by_one, gguf.GGMLQuantizationType.TQ1_0)
    return _stream((values + 1).astype(np.uint8), 2), blocks[:, -2:]


def _join_plain(codes: Octets, scales: Octets) -> Octets:
    return codes


def _split_plain(blocks: Octets) -> tuple[Octets, Octets]:
    return blocks, blocks[:, :0]


def _plain(name: str) -> BlockType:
    fmt = CATALOGUE[name].format
    width = fmt.element.bits // 8
    name = {"fp32": "F32", "fp16": "F16", "bf16": "BF16"}[name]
    return BlockType(name, fmt, 1, 0, width, width, _join_plain, _split_plain)


_MXFP4, _NVFP4 = CATALOGUE["mxfp4"].format, CATALOGUE["nvfp4"].format
_SYMMETRIC_8, _SYMMETRIC_4, _SYMMETRIC_2 = (Fixed(n, 0, "symmetric") for n in (8, 4, 2))
_TERNARY = Lookup((-1.0, 0.0, 1.0))
_DIGITS = Lookup((-1.0, 0.0, 1.0, 2.0))  # no quantizer writes the last one, which ggml reads as 2

# Of several formats of a type, the last is what a file is read as: it has every code, and no outer scale. An
# outer scale is a tensor of its own beside an NVFP4.
BLOCK_TYPES = (
    BlockType("MXFP4", _MXFP4, 32, 1, 16, 17, _join_mxfp4, _split_mxfp4),
    BlockType("NVFP4", _NVFP4, 64, 4, 32, 36, _join_nvfp4, _split_nvfp4),
    BlockType("NVFP4", Block(_E2M1, _E4M3, 16), 64, 4, 32, 36, _join_nvfp4, _split_nvfp4),
    BlockType("Q8_0", Block(_SYMMETRIC_8, _FP16, 32), 32, 2, 32, 34, _join_q8_0, _split_q8_0),
    BlockType("Q8_0", Block(Fixed(8), _FP16, 32), 32, 2, 32, 34, _join_q8_0, _split_q8_0),
    BlockType("Q4_0", Block(_SYMMETRIC_4, _FP16, 32), 32, 2, 16, 18, _join_q4_0, _split_q4_0),
    BlockType("Q4_0", Block(Fixed(4), _FP16, 32), 32, 2, 16, 18, _join_q4_0, _split_q4_0),
    BlockType("TQ2_0", Block(_SYMMETRIC_2, _FP16, 256), 256, 2, 64, 66, _join_tq2_0, _split_tq2_0),
    BlockType("TQ2_0", Block(_DIGITS, _FP16, 256), 256, 2, 64, 66, _join_digits, _split_digits),
    BlockType("TQ1_0", Block(_TERNARY, _FP16, 256), 256, 2, 64, 54, _join_tq1_0, _split_tq1_0),
    _plain("bf16"),
    _plain("fp16"),
    _plain("fp32"),
)
