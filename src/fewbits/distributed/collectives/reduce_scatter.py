"""The sum or mean over all processes, of which each gets its own rows."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from fewbits.distributed.arguments import (
    Key,
    checked_codec,
    checked_op,
    checked_rows,
    checked_tensor,
    described,
    flat,
    peers_of,
)
from fewbits.distributed.memory import empty
from fewbits.distributed.peers import Peers
from fewbits.distributed.pieces import even, of_rows
from fewbits.distributed.reduction import Reduction, agreed
from fewbits.distributed.state import CodecState
from fewbits.distributed.traffic import Traffic
from fewbits.recipes import Codec
from fewbits.tensor import NarrowTensor, quantize
from fewbits.typing import ProcessGroup


def reduce_scatter(
    tensor: torch.Tensor,
    codec: str | Codec,
    group: ProcessGroup = None,
    *,
    op: str = "sum",
    state: CodecState | None = None,
    key: Key = "",
    traffic: Traffic | None = None,
) -> torch.Tensor:
    """Return this process's rows of the sum over all processes.

    The rows are those that torch.chunk would give it: as many for each, fewer or none for the last. With Q
    the rounding of the codec, applied to the rows for each process on their own, the result is ``Q(x_0) +
    Q(x_1) + ...``, added in float32 in the order of ranks and not rounded again. So for each value

        |result - exact| <= sum_r |Q(x_r) - x_r| + (P - 1) 2^-24 sum_r |Q(x_r)|

    Args:
        tensor: at least one dimension; the same shape and dtype on each process. With a density the largest
            of the values for each process travel to it.
        codec: as :func:`all_reduce` takes it, and so are all others.
        group: a process group, or a mesh of one dimension; None: all processes.
        op: ``sum`` or ``mean``.
        state: what the codec remembers.
        key: which tensor of the state this is.
        traffic: counts the bytes sent.

    Returns:
        A new tensor of the same dtype and dimensions, possibly of no rows.

    Raises:
        ArgumentError: as :func:`all_reduce`, and for a tensor without dimensions.
        DTypeError: not a dense tensor of floating-point numbers.
    """
    if isinstance(tensor, NarrowTensor):
        rows = reduce_scatter(tensor.dense(), codec, group, op=op, state=state, key=key, traffic=traffic)
        return quantize(rows, tensor.format, axis=tensor.axis)
    peers = peers_of(group, traffic)
    with peers.telling():
        read, mean = checked_codec(codec, state), checked_op(op)
        x = checked_rows(checked_tensor(tensor), "reduce_scatter")
    pieces = of_rows(tuple(x.shape), peers.size)
    what = f"reduce_scatter of {described([x])} ({op}) as {read}"
    mine = scattered(flat([x]), pieces, read, peers, what, mean=mean, state=state, key=key)
    return mine.to(tensor.device, x.dtype).view(even(len(x), peers.size, None)[peers.rank], *x.shape[1:])


def scattered(
    x: torch.Tensor,
    pieces: Sequence[int],
    codec: Codec,
    peers: Peers,
    what: str,
    *,
    mean: bool,
    state: CodecState | None = None,
    key: Key = "",
    out: torch.Tensor | None = None,
) -> torch.Tensor:
    """Return this process's piece of the sum or mean of ``x``, (n,), float32.

    Args:
        x: (n,) contiguous.
        pieces: length of each process's piece.
        codec: what travels.
        peers: the processes.
        what: the call, as processes compare it.
        mean: divide by the number of processes.
        state: of the codec.
        key: of the residual in the state.
        out: float32, contiguous, on x's device, where the piece is written; None: new memory.
    """
    n = x.numel()
    total = empty(pieces[peers.rank], torch.float32, x.device) if out is None else out
    finite, residual, velocity = agreed(x, codec, peers, what, state, [key], [n])
    peers.traffic.count("reduce_scatter", 0, wide=(n - pieces[peers.rank]) * x.element_size())
    if not finite:
        return total.fill_(torch.nan)
    job = Reduction(x, pieces, codec, peers, mean=mean, state=state, residual=residual, velocity=velocity)
    job.own_sum(total)
    job.close()
    if job.powers is not None:
        job.powers.scale(total, sum(pieces[: peers.rank]), -1)
    return total
