"""What travels: a run of values as bytes in a codec's format, and back.

A run is encoded and decoded whole, or in parts that lie in the caches while they are worked on.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from fractions import Fraction
from functools import lru_cache
from itertools import accumulate, pairwise

import torch

from fewbits.formats import Format
from fewbits.kernels.bits.layout import layout
from fewbits.kernels.bits.options import Choices, read_format
from fewbits.kernels.bits.packing import line_bytes
from fewbits.kernels.bits.words import pack_words, unpack_words
from fewbits.kernels.ops.flat import (
    dequantize_add,
    dequantize_flat,
    quantize_flat,
    quantize_with_feedback,
    top_k,
)
from fewbits.kernels.portable.values import packing
from fewbits.recipes import Codec
from fewbits.tensor import NarrowTensor, quantize

_ALIGNED = 4  # bytes: outer scales are float32
_PART = 1 << 17  # values that are worked on together: half a mebibyte of float32
_NATIVE = (torch.float32, torch.bfloat16, torch.float16)

Pieces = tuple[torch.Tensor | None, ...]


def nbytes(codec: Codec, n: int) -> int:
    """Return the bytes of a run of ``n`` values: values, scales, indices, and what aligns the next run."""
    return _dense_bytes(codec, kept(codec, n)) + _aligned(line_bytes(kept(codec, n), _index_bits(codec, n)))


def kept(codec: Codec, n: int) -> int:
    """Return how many values of a run of ``n`` travel: 7 of 100 at a density of 0.07, which no float is."""
    return n if codec.density is None else math.ceil(Fraction(str(codec.density)) * n)


def is_plain(x: torch.Tensor, codec: Codec) -> bool:
    """Return whether the bytes of ``x`` are its run."""
    return codec.format is None and codec.density is None and x.dtype == torch.float32


def parts(codec: Codec, n: int) -> Iterator[tuple[int, int]]:
    """Yield where the parts of a run of ``n`` values start and stop that can be coded one by one.

    It is the whole run where values are chosen, share one scale, or are rounded by draws that count them.
    """
    step = _step(codec) or max(n, 1)
    for start in range(0, n, step):
        yield start, min(start + step, n)


def encode(
    x: torch.Tensor,
    codec: Codec,
    out: torch.Tensor,
    seed: int,
    residual: torch.Tensor | None = None,
    velocity: torch.Tensor | None = None,
    *,
    start: int = 0,
    n: int | None = None,
) -> str:
    """Write a run of values, or a part of it, as bytes; return the format that they are in.

    Args:
        x: (m,), of any dtype that can be rounded, contiguous.
        codec: says the format, and how many values travel.
        out: (nbytes(codec, n),) uint8, that begins at a multiple of four bytes of its storage.
        seed: of stochastic rounding.
        residual: (m,) float32 that is added before, and overwritten by what is left; zero for what is not
            finite.
        velocity: (m,) float32, with a density: its momentum is added to the values, and what travels loses
            its own.
        start: where the values lie in the run; one of :func:`parts`.
        n: values of the run; None: m.
    """
    x = x.float() if x.dtype == torch.float64 and (residual is not None or codec.density is not None) else x
    if codec.density is None:
        return _encode_dense(x, codec, out, seed, residual, start, x.numel() if n is None else n)
    if velocity is not None:
        x = velocity.mul_(codec.momentum).add_(x)
    given = x if residual is None else residual.add_(x)
    count = x.numel()
    places = top_k(given, kept(codec, count))
    values, left = given[places], None if residual is None else x.new_zeros(len(places), dtype=torch.float32)
    packed = _packed(places, _index_bits(codec, count))
    out[_dense_bytes(codec, len(places)) :][: packed.numel()] = packed
    format = _encode_dense(values, codec, out, seed, left, 0, len(places))
    if velocity is not None:
        velocity[places] = 0
    if residual is not None and left is not None:
        residual[places] = left
        # The largest are finite: then the others are. Of a device nobody waits for the answer.
        if values.device.type != "cpu" or not values.isfinite().all():
            for kept_here in (residual, velocity):
                if kept_here is not None:
                    kept_here.nan_to_num_(nan=0.0, posinf=0.0, neginf=0.0)
    return format


def _encode_dense(
    x: torch.Tensor,
    codec: Codec,
    out: torch.Tensor,
    seed: int,
    residual: torch.Tensor | None,
    start: int,
    n: int,
) -> str:
    values = codec.values
    if values is None:
        out[4 * start :][: 4 * x.numel()].view(torch.float32).copy_(x)
        return "fp32"
    if not x.numel():
        return str(values.format)
    # What lies beyond a scale that was chosen for all processes is clipped, and processes tell each other of
    # NaN before they send where values cannot; see reduction.py.
    overflow = "saturate" if codec.aps or codec.auto_scale else None
    nonfinite = None if codec.carries_nan else "saturate"
    choices = Choices(values.rounding, values.scale_rule, overflow, nonfinite)
    seed = seed if values.rounding == "stochastic" else 0
    pieces = _pieces(out, values.format, n, start, start + x.numel())
    if residual is not None:
        quantize_with_feedback(x, residual, values.format, choices, seed, pieces)
    elif x.dtype in _NATIVE:
        quantize_flat(x, values.format, choices, seed, pieces)
    else:
        packed = NarrowTensor(pieces, values.format, (x.numel(),), 0, x.dtype)
        quantize(
            x,
            values.format,
            rounding=values.rounding,
            scale_rule=values.scale_rule,
            overflow=overflow,
            nonfinite=nonfinite,
            generator=seed if values.rounding == "stochastic" else None,
            out=packed,
        )
    return str(values.format)


def decode(
    wire: torch.Tensor, codec: Codec, out: torch.Tensor, *, start: int = 0, n: int | None = None
) -> None:
    """Write the values of a run, or of a part of it, to ``out``, (m,) float32; what did not travel is zero.

    Args:
        wire: the bytes of the run.
        codec: that encoded it.
        out: overwritten.
        start: of the part, one of :func:`parts`.
        n: values of the run; None: m.
    """
    count = out.numel()
    if not count:
        return
    if codec.density is not None:
        out.zero_()
        add(wire, codec, out)
    elif codec.format is None:
        out.copy_(wire[4 * start :][: 4 * count].view(torch.float32))
    else:
        pieces = _pieces(wire, codec.format, count if n is None else n, start, start + count)
        dequantize_flat(pieces, codec.format, out)


def add(
    wire: torch.Tensor, codec: Codec, total: torch.Tensor, *, start: int = 0, n: int | None = None
) -> None:
    """Add the values of a run, or of a part of it, to ``total``, (m,) float32, each once and rounded once.

    Arguments are those of :func:`decode`.
    """
    count = total.numel()
    if not count:
        return
    if codec.density is not None:
        bits, k = _index_bits(codec, count), kept(codec, count)
        values = torch.empty(k, dtype=torch.float32, device=total.device)
        decode(wire, Codec(codec.values), values)
        packed = wire[_dense_bytes(codec, k) :][: line_bytes(k, bits)]
        total.index_add_(0, _unpacked(packed, bits, k), values)
    elif codec.format is None:
        total += wire[4 * start :][: 4 * count].view(torch.float32)
    else:
        pieces = _pieces(wire, codec.format, count if n is None else n, start, start + count)
        dequantize_add(pieces, codec.format, count, total)


def _packed(places: torch.Tensor, bits: int) -> torch.Tensor:
    """Return indices below 2^bits as bytes."""
    if places.device.type != "cpu":
        return packing.pack(places, bits)
    return torch.from_numpy(pack_words(places.numpy(), bits))


def _unpacked(packed: torch.Tensor, bits: int, count: int) -> torch.Tensor:
    """Return the ``count`` indices of :func:`_packed`, int64."""
    if packed.device.type != "cpu":
        return packing.unpack(packed, bits, count).long()
    return torch.from_numpy(unpack_words(packed.numpy(), bits, count))


def _pieces(wire: torch.Tensor, format: Format, n: int, start: int, stop: int) -> Pieces:
    """Return codes, scales, shifts and outer scales of a part of a run, as views of its bytes."""
    text = format.grammar
    outer, *octets = (
        None if begin == end else wire[begin + first : begin + last]
        for (begin, end), first, last in zip(
            pairwise(_ends(text, n)), _sizes(text, start), _sizes(text, stop), strict=True
        )
    )
    return (*octets, None if outer is None else outer.view(torch.float32))


def _dense_bytes(codec: Codec, n: int) -> int:
    return 4 * n if codec.format is None else _aligned(_ends(codec.format.grammar, n)[-1])


@lru_cache(maxsize=256)
def _ends(format: str, n: int) -> tuple[int, ...]:
    """Return where outer scales, codes, scales and shifts begin, and where the last ends."""
    return tuple(accumulate(_sizes(format, n), initial=0))


@lru_cache(maxsize=1024)
def _sizes(format: str, n: int) -> tuple[int, ...]:
    """Return the bytes of outer scales, codes, scales and shifts: float32 first, which is aligned so."""
    codes, scales, shifts, outer = (
        0 if shape is None or not n else shape[-1] for shape in layout(read_format(format), (n,), 0)
    )
    return 4 * outer, codes, scales, shifts


@lru_cache(maxsize=64)
def _step(codec: Codec) -> int | None:
    """Return the length of a part, of whole blocks and bytes; None if runs have to stay whole."""
    if codec.format is None:
        return None if codec.density is not None else _PART
    sizes = [group.size for group in codec.format.groups.shared]
    stochastic = codec.values is not None and codec.values.rounding == "stochastic"
    if codec.density is not None or stochastic or any(isinstance(size, str) for size in sizes):
        return None
    unit = math.lcm(8, *(size for size in sizes if not isinstance(size, str)))
    return -(-_PART // unit) * unit


def _aligned(size: int) -> int:
    return -(-size // _ALIGNED) * _ALIGNED


def _index_bits(codec: Codec, n: int) -> int:
    return 0 if codec.density is None else max((n - 1).bit_length(), 1)
