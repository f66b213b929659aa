"""The sum or mean over all processes, of which each gets its own rows."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from fewbits.distributed.arguments import (
    Key,
    checked_codec,
    checked_op,
    checked_rows,
    checked_tensor,
    described,
    flat,
    is_finite,
    peers_of,
)
from fewbits.distributed.pieces import even, of_rows
from fewbits.distributed.reduction import Reduction
from fewbits.distributed.state import CodecState
from fewbits.distributed.traffic import Traffic
from fewbits.recipes import Codec
from fewbits.tensor import NarrowTensor, quantize

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup
    from torch.distributed.device_mesh import DeviceMesh


def reduce_scatter(
    tensor: torch.Tensor,
    codec: str | Codec,
    group: ProcessGroup | DeviceMesh | None = None,
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
    values, shape = flat([x]), tuple(x.shape[1:])
    pieces = of_rows(tuple(x.shape), peers.size)
    told = peers.agree(f"reduce_scatter of {described([x])} ({op}) as {read}", [int(is_finite(values, read))])
    n = values.numel()
    peers.traffic.count("reduce_scatter", 0, wide=(n - pieces[peers.rank]) * x.element_size())
    residual = None if state is None else state.residual(key, n)
    if not all(finite for finite, *_ in told):
        if state is not None:
            state.next_call()
        rows = torch.full((pieces[peers.rank],), torch.nan)
    else:
        job = Reduction(values, pieces, read, peers, mean=mean, state=state, residual=residual)
        rows = job.own_sum()
        job.close()
        if job.powers is not None:
            rows *= 2.0 ** -job.powers[0]
    return rows.to(x.dtype).view(even(len(x), peers.size, None)[peers.rank], *shape)
