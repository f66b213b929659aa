"""The sum or mean over all processes, narrow on the wire."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import ExitStack
from typing import Any, overload

import numpy as np
import torch

from fewbits.distributed import wire
from fewbits.distributed.arguments import (
    Key,
    checked_codec,
    checked_op,
    checked_tensor,
    described,
    flat,
    is_mesh,
    peers_of,
)
from fewbits.distributed.memory import empty
from fewbits.distributed.peers import Peers
from fewbits.distributed.pieces import even, within
from fewbits.distributed.reduction import Reduction, add_runs, agreed
from fewbits.distributed.state import CodecState, derived
from fewbits.distributed.traffic import Traffic
from fewbits.recipes import Codec
from fewbits.tensor import NarrowTensor, quantize
from fewbits.typing import ProcessGroup


@overload
def all_reduce(
    tensor: torch.Tensor,
    codec: str | Codec,
    group: ProcessGroup = ...,
    *,
    op: str = ...,
    state: CodecState | None = ...,
    key: Key = ...,
    traffic: Traffic | None = ...,
) -> torch.Tensor: ...
@overload
def all_reduce(
    tensor: Sequence[torch.Tensor],
    codec: str | Codec,
    group: ProcessGroup = ...,
    *,
    op: str = ...,
    state: CodecState | None = ...,
    key: Key = ...,
    traffic: Traffic | None = ...,
) -> list[torch.Tensor]: ...


def all_reduce(
    tensor: torch.Tensor | Sequence[torch.Tensor],
    codec: str | Codec,
    group: ProcessGroup = None,
    *,
    op: str = "sum",
    state: CodecState | None = None,
    key: Key = "",
    traffic: Traffic | None = None,
) -> torch.Tensor | list[torch.Tensor]:
    """Return the sum over all processes, the same bits on each of them.

    With Q the rounding of the codec and x_r what rank r gives, the result is ``Q(Q(x_0) + Q(x_1) + ...)``,
    added in float32 in the order of ranks; for ``mean`` the sum is divided before it is rounded. So for each
    value

        |result - exact| <= sum_r |Q(x_r) - x_r| + |Q(s) - s| + (P - 1) 2^-24 sum_r |Q(x_r)|

    with P processes and s the sum of the rounded. With a density the values kept travel to all, their sum is
    not rounded again, and what is left out counts as rounded to zero. With ``aps`` or ``auto_scale`` Q rounds
    what a power of two has scaled, and with ``feedback`` x_r is what is given and what was left before.

    Args:
        tensor: any shape; float16, bfloat16, float32 or float64; the same shape and dtype on each process. A
            list of tensors travels in one message; each is a layer with a scale of its own under ``aps``.
        codec: a codec or its text.
        group: a process group, a mesh of one dimension, or a mesh of two: (nodes, processes of a node).
            Then sums within a node travel as float32, and only sums of nodes in the codec.
        op: ``sum`` or ``mean``.
        state: what the codec remembers; needed with feedback, auto_scale and stochastic rounding.
        key: which tensor of the state this is.
        traffic: counts the bytes sent.

    Returns:
        A new tensor, or a list of them, of the shape and dtype given, without gradient. A NarrowTensor gives
        its values and gets the sum back in its own format.

    Raises:
        ArgumentError: no process group, a bad option, or processes that differ; on every process.
        DTypeError: not a dense tensor of those dtypes.
    """
    if isinstance(tensor, NarrowTensor):
        total = all_reduce(tensor.dense(), codec, group, op=op, state=state, key=key, traffic=traffic)
        return quantize(total, tensor.format, axis=tensor.axis)
    levels = _levels(group, traffic)
    with ExitStack() as told:
        for peers in reversed(levels):
            told.enter_context(peers.telling())
        read, mean = checked_codec(codec, state), checked_op(op)
        tensors = [checked_tensor(x) for x in _each(tensor)]
        x = flat(tensors) if tensors else torch.empty(0, dtype=torch.float32)
    what = f"all_reduce of {described(tensors)} ({op}) as {read}"
    layers = [t.numel() for t in tensors]
    if len(levels) == 1:
        total = reduced(x, read, levels[0], what, mean=mean, layers=layers, state=state, keys=[key])
    else:
        total = _by_levels(x, read, levels, what, mean=mean, layers=layers, state=state, keys=[key])
    if isinstance(tensor, torch.Tensor):
        return total.view(tensor.shape).to(tensor.device, tensor.dtype)
    parts = zip(total.split(layers), tensors, strict=True)
    return [part.view(t.shape).to(t.device, t.dtype, copy=True) for part, t in parts]


def _each(given: Any) -> list[Any]:
    """Return the tensors of one or several, or what is given in place of one."""
    several = isinstance(given, Iterable) and not isinstance(given, (torch.Tensor, np.ndarray))
    return list(given) if several else [given]


def _levels(group: ProcessGroup, traffic: Traffic | None) -> list[Peers]:
    """Return the processes that reduce, from the inner level to the outer."""
    if is_mesh(group) and group.ndim == 2:
        outer = Peers(group.get_group(0))
        with outer.telling():  # of a traffic that is none, which those within the node are told
            inner = Peers(group.get_group(1), traffic)
        outer.traffic = inner.traffic
        return [inner, outer]
    return [peers_of(group, traffic)]


def reduced(
    x: torch.Tensor,
    codec: Codec,
    peers: Peers,
    what: str,
    *,
    mean: bool,
    layers: Sequence[int] | None = None,
    state: CodecState | None = None,
    keys: Sequence[Key] = ("",),
    out: torch.Tensor | None = None,
) -> torch.Tensor:
    """Return the sum or mean of ``x``, (n,), over the processes, (n,) float32.

    Args:
        x: (n,) contiguous.
        codec: what travels.
        peers: the processes.
        what: the call, as processes compare it.
        mean: divide by the number of processes.
        layers: lengths of the parts that have a scale of their own.
        state: of the codec.
        keys: of the residuals in the state, one for all layers or one for each.
        out: (n,) float32, contiguous, on x's device, where the result is written; it may be x. None: a new
            tensor.
    """
    n = x.numel()
    total = empty(n, torch.float32, x.device) if out is None else out
    lengths = [n] if len(keys) == 1 or layers is None else layers
    finite, *kept = agreed(x, codec, peers, what, state, keys, lengths)
    peers.traffic.count("all_reduce", 0, wide=2 * (peers.size - 1) * n * x.element_size() // peers.size)
    if not finite:
        return total.fill_(torch.nan)
    if codec.density is not None:
        return _of_kept(x, codec, peers, total, *kept, mean=mean, state=state)
    job = Reduction(
        x,
        even(n, peers.size, codec.format),
        codec,
        peers,
        mean=mean,
        layers=layers,
        state=state,
        residual=kept[0],
    )
    job.sum_everywhere(total)
    job.close()
    return total


def _of_kept(
    x: torch.Tensor,
    codec: Codec,
    peers: Peers,
    total: torch.Tensor,
    residual: torch.Tensor | None,
    velocity: torch.Tensor | None,
    *,
    mean: bool,
    state: CodecState | None,
) -> torch.Tensor:
    """Send the values kept to all processes, and add them there in the order of ranks."""
    seed = 0 if state is None else derived(state.next_call(), peers.rank)
    sent = empty(wire.nbytes(codec, x.numel()), torch.uint8, x.device)
    peers.traffic.encoded(wire.encode(x, codec, sent, seed, residual, velocity), wire.kept(codec, x.numel()))
    add_runs(list(peers.all_gather(sent)), codec, total)
    return total.div_(peers.size) if mean else total


def _by_levels(
    x: torch.Tensor,
    codec: Codec,
    levels: Sequence[Peers],
    what: str,
    *,
    mean: bool,
    layers: Sequence[int],
    state: CodecState | None,
    keys: Sequence[Key],
) -> torch.Tensor:
    """Add within nodes as float32, between nodes as the codec says.

    HiTopKComm; Shi et al., Towards Scalable Distributed Training of Deep Learning on Public Cloud Clusters,
    2021, section 4.
    """
    inner, outer = levels
    with outer.telling():
        inner.agree(what)
    wide = Codec()
    pieces = even(x.numel(), inner.size, codec.format)
    job = Reduction(x.float(), pieces, wide, inner, mean=mean)
    mine = job.own_sum(empty(pieces[inner.rank], torch.float32, x.device))
    own = within(layers, sum(pieces[: inner.rank]), mine.numel())
    between = f"{what}, between nodes"
    total = reduced(mine, codec, outer, between, mean=mean, layers=own, state=state, keys=keys)
    return job.shared(total, empty(x.numel(), torch.float32, x.device))
