"""What travels: a run of values as bytes in a codec's format, and back."""

from __future__ import annotations

import math
from functools import lru_cache
from itertools import accumulate, pairwise

import torch

from fewbits.formats import Format
from fewbits.kernels.bits.layout import layout
from fewbits.kernels.bits.options import Choices
from fewbits.kernels.bits.packing import line_bytes, pack, unpack
from fewbits.kernels.ops.flat import dequantize_add, quantize_with_feedback, top_k
from fewbits.recipes import Codec
from fewbits.tensor import NarrowTensor, dequantize, quantize

_ALIGNED = 4  # bytes: outer scales are float32


def nbytes(codec: Codec, n: int) -> int:
    """Return the bytes of a run of ``n`` values: values, scales, indices, and what aligns the next run."""
    return _dense_bytes(codec, kept(codec, n)) + _aligned(line_bytes(kept(codec, n), _index_bits(codec, n)))


def kept(codec: Codec, n: int) -> int:
    """Return how many values of a run of ``n`` travel."""
    return n if codec.density is None else math.ceil(codec.density * n)


def encode(
    x: torch.Tensor, codec: Codec, out: torch.Tensor, seed: int, residual: torch.Tensor | None = None
) -> None:
    """Write a run of values as bytes.

    Args:
        x: (n,), of any dtype that can be rounded, contiguous.
        codec: says the format, and how many values travel.
        out: (nbytes(codec, n),) uint8, that begins at a multiple of four bytes of its storage.
        seed: of stochastic rounding.
        residual: (n,) float32 that is added before, and overwritten by what is left; zero for what is not
            finite.
    """
    x = x.float() if x.dtype == torch.float64 and (residual is not None or codec.density is not None) else x
    if codec.density is None:
        _encode_dense(x, codec, out, seed, residual)
        return
    n = x.numel()
    given = x if residual is None else residual.add_(x)
    places = top_k(given, kept(codec, n))
    values, left = given[places], None if residual is None else torch.zeros(len(places), dtype=torch.float32)
    packed = torch.from_numpy(pack(places.numpy(), _index_bits(codec, n)))
    out[_dense_bytes(codec, len(places)) :][: packed.numel()] = packed
    _encode_dense(values, codec, out, seed, left)
    if residual is not None and left is not None:
        residual[places] = left
        if not values.isfinite().all():  # the largest: only then others may not be either
            residual.nan_to_num_(nan=0.0, posinf=0.0, neginf=0.0)


def _encode_dense(
    x: torch.Tensor, codec: Codec, out: torch.Tensor, seed: int, residual: torch.Tensor | None
) -> None:
    n, values = x.numel(), codec.values
    if not n:
        return
    if values is None:
        out[: 4 * n].view(torch.float32).copy_(x)
        return
    # What lies beyond a scale that was chosen for all processes is clipped, and processes tell each other of
    # NaN before they send where values cannot; see reduction.py.
    overflow = "saturate" if codec.aps or codec.auto_scale else None
    nonfinite = None if codec.carries_nan else "saturate"
    stochastic = values.rounding == "stochastic"
    packed = _narrow(out, values.format, n, x.dtype)
    if residual is None:
        quantize(
            x,
            values.format,
            rounding=values.rounding,
            scale_rule=values.scale_rule,
            overflow=overflow,
            nonfinite=nonfinite,
            generator=seed if stochastic else None,
            out=packed,
        )
    else:
        choices = Choices(values.rounding, values.scale_rule, overflow, nonfinite)
        quantize_with_feedback(x, residual, values.format, choices, seed if stochastic else 0, packed.pieces)


def decode(wire: torch.Tensor, codec: Codec, out: torch.Tensor) -> None:
    """Write the values of a run to ``out``, (n,) float32; those that did not travel are zero."""
    if codec.density is None:
        _decode_dense(wire, codec, out)
    else:
        out.zero_()
        add(wire, codec, out)


def add(wire: torch.Tensor, codec: Codec, total: torch.Tensor) -> None:
    """Add the values of a run to ``total``, (n,) float32, each once and rounded once."""
    n = total.numel()
    if not n:
        return
    if codec.density is not None:
        bits, k = _index_bits(codec, n), kept(codec, n)
        values = torch.empty(k, dtype=torch.float32)
        _decode_dense(wire, codec, values)
        packed = wire[_dense_bytes(codec, k) :][: line_bytes(k, bits)]
        total[torch.from_numpy(unpack(packed.numpy(), bits, k).astype("int64"))] += values
    elif codec.format is None:
        total += wire[: 4 * n].view(torch.float32)
    else:
        dequantize_add(_narrow(wire, codec.format, n, torch.float32).pieces, codec.format, n, total)


def _decode_dense(wire: torch.Tensor, codec: Codec, out: torch.Tensor) -> None:
    n = out.numel()
    if not n:
        return
    if codec.format is None:
        out.copy_(wire[: 4 * n].view(torch.float32))
    else:
        dequantize(_narrow(wire, codec.format, n, torch.float32), out=out)


def _narrow(wire: torch.Tensor, format: Format, n: int, dtype: torch.dtype) -> NarrowTensor:
    """Return the tensor whose parts are views of the bytes."""
    outer, codes, scales, shifts = (
        None if start == end else wire[start:end] for start, end in pairwise(_ends(format, n))
    )
    numbers = None if outer is None else outer.view(torch.float32)
    return NarrowTensor((codes, scales, shifts, numbers), format, (n,), 0, dtype)


def _dense_bytes(codec: Codec, n: int) -> int:
    return 4 * n if codec.format is None else _aligned(_ends(codec.format, n)[-1])


@lru_cache(maxsize=256)
def _ends(format: Format, n: int) -> tuple[int, ...]:
    """Return where outer scales, codes, scales and shifts begin, and where the last ends."""
    codes, scales, shifts, outer = (
        0 if shape is None or not n else shape[-1] for shape in layout(format, (n,), 0)
    )
    return tuple(accumulate([4 * outer, codes, scales, shifts], initial=0))  # float32 first: it is aligned


def _aligned(size: int) -> int:
    return -(-size // _ALIGNED) * _ALIGNED


def _index_bits(codec: Codec, n: int) -> int:
    return 0 if codec.density is None else max((n - 1).bit_length(), 1)
