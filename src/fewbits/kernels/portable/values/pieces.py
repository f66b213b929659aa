"""Large tensors in pieces, so that what is computed on the way takes little memory; not in a graph.

A compiler fuses the steps and keeps nothing on the way. In a graph of 16-bit numbers for the CPU it is told
to keep float32 there: Inductor 2.13 walks a loop that reads or writes 16 bits by 16 values, in two vectors of
float32, and takes their bits through memory in pieces that the processor waits for. A step of the loop that
reads and writes float32 makes it walk by 8, in less than half the time.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

Tensor = torch.Tensor

_ON_CPU, _ON_DEVICES = 1 << 17, 1 << 22  # values at once: within a cache, or enough for a device


def in_pieces(
    function: Callable[..., Tensor], x: Tensor, others: Sequence[Tensor | None], dtype: torch.dtype
) -> Tensor:
    """Return ``function(x, *others)``, which works on each value alone, in ``dtype``.

    Args:
        function: from pieces of ``x`` and ``others`` to one of the result.
        x: of the shape of the result.
        others: broadcastable to x, with its number of axes or none.
        dtype: of the result.
    """
    at_once = _ON_CPU if x.is_cpu else _ON_DEVICES
    if type(x) is not Tensor or x.numel() <= at_once:  # other types are those of tracers
        return function(x, *others)
    longest = max(range(x.ndim), key=lambda dim: x.shape[dim])
    length = x.shape[longest]
    step = max(1, at_once * length // x.numel())
    out = torch.empty(x.shape, dtype=dtype, device=x.device)
    for start in range(0, length, step):
        size = min(step, length - start)

        def piece(part: Tensor | None, start: int = start, size: int = size) -> Tensor | None:
            shared = part is None or part.ndim == 0 or part.shape[longest] == 1
            return part if part is None or shared else part.narrow(longest, start, size)

        out.narrow(longest, start, size).copy_(
            function(x.narrow(longest, start, size), *[piece(part) for part in others])
        )
    return out


def in_memory(x: Tensor) -> Tensor:
    """Return ``x`` as a graph of Inductor holds it in memory: as_strided looks at nothing else."""
    x = x.contiguous()
    return x.as_strided(x.shape, x.stride())


def in_block_loop(x: Tensor, exponent: Tensor | None) -> Tensor:
    """Return :func:`in_memory` of ``x``, a step of its own in the loop over blocks that share ``exponent``.

    What depends on nothing of a block is computed for all values before that loop. So it depends on a
    condition that always holds.
    """
    return in_memory(x if exponent is None else torch.where(exponent > -(1 << 20), x, 0.0))
