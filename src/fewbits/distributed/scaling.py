"""Powers of two that bring values into the range of a format without scales, the same on every process."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Sequence
from itertools import accumulate

import torch

from fewbits.distributed.peers import Peers
from fewbits.distributed.state import CodecState
from fewbits.kernels.ops.flat import largest_finite
from fewbits.recipes import Codec

_ZERO = 0  # the byte of a layer without values but zero
_MOST = 126  # a scale that is a float32 itself
# Of exponents as bytes: from 2^-114, below which the scale of most formats is the largest already, to 2^140,
# sums of 4,096 processes.
_BIAS = 115


class Powers:
    """The power of two by which the values of each layer are multiplied.

    Args:
        layers: lengths of the layers, which lie one after the other.
        exponents: of the powers.
    """

    def __init__(self, layers: Sequence[int], exponents: Sequence[int]) -> None:
        self._ends, self._exponents = list(accumulate(layers)), exponents

    def scale(self, x: torch.Tensor, start: int, sign: int = 1) -> None:
        """Multiply the values ``x``, (n,) float32, that begin at ``start``, by 2^(sign * exponent)."""
        at, end = start, start + x.numel()
        layer = bisect_right(self._ends, at)
        while at < end:
            stop = min(self._ends[layer], end)
            x[at - start : stop - start].mul_(2.0 ** (sign * self._exponents[layer]))
            at, layer = stop, layer + 1


def agreed_powers(
    x: torch.Tensor, layers: Sequence[int], codec: Codec, peers: Peers, times: int, state: CodecState | None
) -> Powers | None:
    """Return what the values of each layer are multiplied by, None if the codec does not scale.

    Args:
        x: (n,) float32, bfloat16 or float16, contiguous. Of a device the host reads the largest magnitude of
            each layer, which it tells the other processes.
        layers: lengths of the parts of x that have a scale of their own.
        codec: says whether there is such a scale at all.
        peers: who agree on it.
        times: how much larger than the largest value of one process a sum can be.
        state: holds the automatic scale.
    """
    if codec.auto_scale:
        assert state is not None
        return Powers(layers, [math.floor(state.log2_scale)] * len(layers))
    if not codec.aps or codec.format is None:
        return None
    mine = torch.tensor([_exponent(part, times) for part in x.split(list(layers))], dtype=torch.uint8)
    most = math.floor(math.log2(codec.format.element.max))
    largest = peers.maxima(mine).tolist()
    return Powers(layers, [0 if e == _ZERO else min(max(most - (e - _BIAS), -_MOST), _MOST) for e in largest])


def _exponent(x: torch.Tensor, times: int) -> int:
    """Return ceil(log2(times * largest finite magnitude)) as a byte (APS, algorithm 1)."""
    largest, _ = largest_finite(x)
    if not largest:
        return _ZERO
    fraction, exponent = math.frexp(largest * times)  # exact in float64: a power of two is 0.5 * 2^e
    return min(max(exponent - (fraction == 0.5) + _BIAS, 1), 255)


def clipped(x: torch.Tensor, codec: Codec, times: int) -> int:
    """Return how many of the scaled values, (n,) float32, lie beyond the largest of the format.

    Those count whose sum may, ``times`` as large: it is rounded with the same scale.
    """
    assert codec.format is not None
    most = codec.format.element.max / times
    largest, finite = largest_finite(x)
    return 0 if finite and largest <= most else int((x.abs() > most).sum())


def count_clipped(here: int, n: int, peers: Peers, state: CodecState) -> None:
    """Adapt the automatic scale to how many of the ``n`` values of each process were clipped."""
    octets = torch.tensor([here, n]).view(torch.uint8)
    rows = peers.all_gather(octets, "maxima").view(torch.int64)
    state.clipped(int(rows[:, 0].sum()), int(rows[:, 1].sum()))
