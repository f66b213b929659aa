"""Powers of two that bring values into the range of a format without scales, the same on every process."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch

from fewbits.distributed.peers import Peers
from fewbits.distributed.state import CodecState
from fewbits.recipes import Codec

_ZERO = 0  # the byte of a layer without values but zero
_BIAS = 140  # of exponents as bytes; float32 reaches from 2^-149, whose byte would be 0 as zero's, to 2^128
_MOST = 126  # a scale that is a float32 itself


def exponents(
    x: torch.Tensor, layers: Sequence[int], codec: Codec, peers: Peers, times: int, state: CodecState | None
) -> list[int] | None:
    """Return for each layer the exponent of the power of two that its values are multiplied by.

    Args:
        x: (n,) float32.
        layers: lengths of the parts of x that have a scale of their own.
        codec: says whether there is such a scale at all; None is returned if not.
        peers: who agree on it.
        times: how much larger than the largest value of one process a sum can be.
        state: holds the automatic scale.
    """
    if codec.auto_scale:
        assert state is not None
        return [math.floor(state.log2_scale)] * len(layers)
    if not codec.aps or codec.format is None:
        return None
    mine = torch.tensor([_exponent(part, times) for part in x.split(list(layers))], dtype=torch.uint8)
    most = math.floor(math.log2(codec.format.element.max))
    return [
        0 if e == _ZERO else min(max(most - (e - _BIAS), -_MOST), _MOST) for e in peers.maxima(mine).tolist()
    ]


def _exponent(x: torch.Tensor, times: int) -> int:
    """Return ceil(log2(times * largest finite magnitude)) as a byte (APS, algorithm 1)."""
    largest = float(torch.where(x.isfinite(), x, 0.0).abs().max()) if x.numel() else 0.0
    if not largest:
        return _ZERO
    fraction, exponent = math.frexp(largest * times)  # exact in float64: a power of two is 0.5 * 2^e
    return min(max(exponent - (fraction == 0.5) + _BIAS, 1), 255)


def scaled(
    x: torch.Tensor, layers: Sequence[int], powers: Sequence[int] | None, sign: int = 1
) -> torch.Tensor:
    """Multiply the layers of ``x``, (n,) float32, in place by 2^(sign * power); None leaves them."""
    if powers is not None:
        for part, power in zip(x.split(list(layers)), powers, strict=True):
            part.mul_(2.0 ** (sign * power))
    return x


def count_clipped(x: torch.Tensor, codec: Codec, peers: Peers, state: CodecState) -> None:
    """Adapt the automatic scale to how many of the scaled values lie beyond the largest of the format."""
    assert codec.format is not None
    here = int((x.abs() > codec.format.element.max).sum())
    octets = torch.tensor([here, x.numel()]).view(torch.uint8)
    rows = peers.all_gather(octets, "maxima").view(torch.int64)
    state.clipped(int(rows[:, 0].sum()), int(rows[:, 1].sum()))
