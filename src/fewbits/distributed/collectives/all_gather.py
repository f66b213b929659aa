"""The tensors of all processes, one after the other."""

from __future__ import annotations

import math

import torch

from fewbits.distributed.arguments import checked_codec, checked_tensor, described, is_finite, peers_of
from fewbits.distributed.gathering import all_gathered
from fewbits.distributed.narrow import gathered
from fewbits.distributed.state import CodecState, derived
from fewbits.distributed.traffic import Traffic
from fewbits.errors import ArgumentError
from fewbits.recipes import Codec
from fewbits.tensor import NarrowTensor
from fewbits.typing import ProcessGroup


def all_gather(
    tensor: torch.Tensor,
    codec: str | Codec | None = None,
    group: ProcessGroup = None,
    *,
    state: CodecState | None = None,
    traffic: Traffic | None = None,
) -> torch.Tensor:
    """Return the tensors of all processes along the first dimension, in the order of ranks.

    Each is rounded once, the process's own too, so that all hold the same bits: ``Q(x_0), Q(x_1), ...``.

    Args:
        tensor: any shape and floating-point dtype, the same on each process but for the first dimension. A
            NarrowTensor travels as it lies.
        codec: a codec or its text, without a density, feedback or a scale between processes; None for a
            NarrowTensor.
        group: a process group, or a mesh of one dimension; None: all processes.
        state: of stochastic rounding.
        traffic: counts the bytes sent.

    Raises:
        ArgumentError: no process group, a codec that only reductions have, or processes that differ.
        DTypeError: not a dense tensor of floating-point numbers.
    """
    peers = peers_of(group, traffic)
    if isinstance(tensor, NarrowTensor):
        return gathered(tensor, codec, peers)
    with peers.telling():
        read = checked_copy(codec, state)
        x = checked_tensor(tensor)
        x = x if x.ndim else x.reshape(1)
    rest = tuple(x.shape[1:])
    what = f"all_gather of {described([x[:0]])} as {read}"
    told = peers.agree(what, [len(x), int(is_finite(x, read))])
    peers.traffic.count("all_gather", 0, wide=(peers.size - 1) * x.numel() * x.element_size())
    lengths = [rows * math.prod(rest) for rows, *_ in told]
    seed = 0 if state is None else derived(state.next_call(), peers.rank)
    finite = [flag for _, flag, *_ in told]
    values = all_gathered(x.reshape(-1), read, peers, lengths, seed, finite=finite)
    return values.to(tensor.device, x.dtype).view(sum(rows for rows, *_ in told), *rest)


def checked_copy(codec: str | Codec | None, state: CodecState | None) -> Codec:
    """Return a codec that copies of tensors can travel in.

    Raises:
        ArgumentError: it is None, or has what only sums have.
    """
    if codec is None:
        raise ArgumentError("no codec for an ordinary tensor; name the format that it travels in, or fp32")
    read = checked_codec(codec, state)
    if read.density is not None or read.feedback or read.aps or read.auto_scale or read.kahan:
        raise ArgumentError(
            f"{read} is for sums over processes; what is only copied takes a format, as"
            f" {read.format or 'fp32'}"
        )
    return read
