"""The operators that turn packed codes into N:M streams, and back.

On another device than the CPU the host waits for one number: the first line that is not as the pattern says.
"""

from __future__ import annotations

import math

import torch

from fewbits.formats import Format
from fewbits.formats.pattern import Pattern, pattern
from fewbits.kernels import portable
from fewbits.kernels.arrays import nm
from fewbits.kernels.bits.nm_stream import stream_bytes
from fewbits.kernels.bits.options import read_format
from fewbits.kernels.bits.packing import line_bytes
from fewbits.kernels.ops.backends import is_native
from fewbits.kernels.ops.library import define
from fewbits.kernels.ops.memory import empty
from fewbits.kernels.ops.tensors import array


def _compress(codes: torch.Tensor, format: str, n: int, sparsity: str) -> torch.Tensor:
    fmt, kept = read_format(format), pattern(sparsity)
    bits = fmt.element.bits
    if not is_native(codes):
        found, crowded = portable.compress(_lines(codes), kept, bits, n, *nm.zeros(fmt))
        nm.refuse_crowded(_first(crowded), kept)
        return found.reshape(*codes.shape[:-1], found.shape[-1])
    stream = empty((*codes.shape[:-1], stream_bytes(n, bits, kept)), torch.uint8)
    nm.compress(array(codes), fmt, n, kept, out=array(stream))
    return stream


def _empty_streams(codes: torch.Tensor, format: str, n: int, sparsity: str) -> torch.Tensor:
    bits = read_format(format).element.bits
    return codes.new_empty((*codes.shape[:-1], stream_bytes(n, bits, pattern(sparsity))))


define(_compress, _empty_streams)


def _expand(stream: torch.Tensor, format: str, n: int, sparsity: str) -> torch.Tensor:
    fmt, kept = read_format(format), pattern(sparsity)
    bits = fmt.element.bits
    if not is_native(stream):
        found, damaged = _expanded(stream, fmt, n, kept)
        nm.refuse_damaged(_first(damaged), kept)
        return found
    codes = empty((*stream.shape[:-1], line_bytes(n, bits)), torch.uint8)
    nm.expand(array(stream), fmt, n, kept, out=array(codes))
    return codes


def _empty_codes(stream: torch.Tensor, format: str, n: int, sparsity: str) -> torch.Tensor:
    bits = read_format(format).element.bits
    return stream.new_empty((*stream.shape[:-1], line_bytes(n, bits)))


define(_expand, _empty_codes)


def _expanded(
    stream: torch.Tensor, format: Format, n: int, sparsity: Pattern
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the packed codes of streams, and which lines are damaged."""
    zero, _ = nm.zeros(format)
    codes, damaged = portable.expand(_lines(stream), sparsity, format.element.bits, n, zero)
    return codes.reshape(*stream.shape[:-1], codes.shape[-1]), damaged


def _lines(packed: torch.Tensor) -> torch.Tensor:
    return packed.reshape(math.prod(packed.shape[:-1]), packed.shape[-1])


def _first(lines: torch.Tensor) -> int:
    """Return the first line that is marked, or -1: the one number that the host waits for."""
    if not len(lines):
        return -1
    lines_from = torch.arange(len(lines), 0, -1, device=lines.device)  # from each on to the last
    most = int(torch.where(lines, lines_from, 0).amax())
    return len(lines) - most if most else -1


def compress(codes: torch.Tensor, format: Format, n: int, sparsity: Pattern) -> torch.Tensor:
    """Return the streams of packed codes of ``n`` values; errors are those of kernels/arrays/nm.py."""
    streams: torch.Tensor = torch.ops.fewbits.compress(codes, format.grammar, n, str(sparsity))
    return streams


def expand(stream: torch.Tensor, format: Format, n: int, sparsity: Pattern) -> torch.Tensor:
    """Return the packed codes of streams of ``n`` values."""
    codes: torch.Tensor = torch.ops.fewbits.expand(stream, format.grammar, n, str(sparsity))
    return codes


def check_masks(stream: torch.Tensor, format: Format, n: int, sparsity: Pattern) -> None:
    """Raise DataError unless every mask of (..., bytes) streams matches the pattern.

    Raises:
        DataError: a mask does not.
    """
    if is_native(stream):
        nm.check_masks(array(stream), format, n, sparsity)
    elif not stream.is_meta:  # which has no masks
        nm.refuse_damaged(_first(_expanded(stream, format, n, sparsity)[1]), sparsity)
