"""The operators that turn packed codes into N:M streams, and back."""

from __future__ import annotations

import torch

from fewbits.formats import Format
from fewbits.formats.pattern import Pattern, pattern
from fewbits.kernels.arrays import nm
from fewbits.kernels.bits.nm_stream import stream_bytes
from fewbits.kernels.bits.options import read_format
from fewbits.kernels.bits.packing import line_bytes
from fewbits.kernels.ops.library import define
from fewbits.kernels.ops.tensors import array


def _compress(codes: torch.Tensor, format: str, n: int, sparsity: str) -> torch.Tensor:
    fmt, kept = read_format(format), pattern(sparsity)
    bits = fmt.element.bits
    stream = torch.empty((*codes.shape[:-1], stream_bytes(n, bits, kept)), dtype=torch.uint8)
    nm.compress(array(codes.cpu()), fmt, n, kept, out=array(stream))
    return stream.to(codes.device)


def _empty_streams(codes: torch.Tensor, format: str, n: int, sparsity: str) -> torch.Tensor:
    bits = read_format(format).element.bits
    return codes.new_empty((*codes.shape[:-1], stream_bytes(n, bits, pattern(sparsity))))


define(_compress, _empty_streams)


def _expand(stream: torch.Tensor, format: str, n: int, sparsity: str) -> torch.Tensor:
    fmt, kept = read_format(format), pattern(sparsity)
    bits = fmt.element.bits
    codes = torch.empty((*stream.shape[:-1], line_bytes(n, bits)), dtype=torch.uint8)
    nm.expand(array(stream.cpu()), fmt, n, kept, out=array(codes))
    return codes.to(stream.device)


def _empty_codes(stream: torch.Tensor, format: str, n: int, sparsity: str) -> torch.Tensor:
    bits = read_format(format).element.bits
    return stream.new_empty((*stream.shape[:-1], line_bytes(n, bits)))


define(_expand, _empty_codes)


def compress(codes: torch.Tensor, format: Format, n: int, sparsity: Pattern) -> torch.Tensor:
    """Return the streams of packed codes of ``n`` values; errors are those of kernels/arrays/nm.py."""
    streams: torch.Tensor = torch.ops.fewbits.compress(codes, format.grammar, n, str(sparsity))
    return streams


def expand(stream: torch.Tensor, format: Format, n: int, sparsity: Pattern) -> torch.Tensor:
    """Return the packed codes of streams of ``n`` values."""
    codes: torch.Tensor = torch.ops.fewbits.expand(stream, format.grammar, n, str(sparsity))
    return codes
