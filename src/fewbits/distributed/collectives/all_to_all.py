"""Rows of each process for each process."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch

from fewbits.distributed import wire
from fewbits.distributed.arguments import checked_rows, checked_tensor, described, is_finite, peers_of
from fewbits.distributed.collectives.all_gather import checked_copy
from fewbits.distributed.narrow import exchanged
from fewbits.distributed.split_sizes import checked_sizes, row_counts
from fewbits.distributed.state import CodecState, derived
from fewbits.distributed.traffic import Traffic
from fewbits.recipes import Codec
from fewbits.tensor import NarrowTensor
from fewbits.typing import ProcessGroup


def all_to_all(
    tensor: torch.Tensor,
    codec: str | Codec | None = None,
    group: ProcessGroup = None,
    *,
    split_sizes: Sequence[int] | None = None,
    state: CodecState | None = None,
    traffic: Traffic | None = None,
) -> torch.Tensor:
    """Send some rows to each process, and return the rows that each sent here, in the order of ranks.

    The rows for one process are rounded on their own, those that stay too.

    Args:
        tensor: at least one dimension, the same on each process but for the first. A NarrowTensor travels as
            it lies.
        codec: as :func:`all_gather` takes it.
        group: a process group, or a mesh of one dimension; None: all processes.
        split_sizes: how many rows go to each process; as many to each by default, fewer to the last.
        state: of stochastic rounding.
        traffic: counts the bytes sent.

    Raises:
        ArgumentError: as :func:`all_gather`, and for sizes that do not sum to the rows.
        DTypeError: not a dense tensor of floating-point numbers.
    """
    peers = peers_of(group, traffic)
    if isinstance(tensor, NarrowTensor):
        return exchanged(tensor, codec, peers, split_sizes)
    with peers.telling():
        read = checked_copy(codec, state)
        x = checked_rows(checked_tensor(tensor), "all_to_all")
        sizes = checked_sizes(split_sizes, len(x), peers)
    rest = tuple(x.shape[1:])
    told = peers.agree(f"all_to_all of {described([x[:0]])} as {read}", [int(is_finite(x, read))])
    received = row_counts(sizes, peers)
    per_row = math.prod(rest)
    peers.traffic.count("all_to_all", 0, wide=(len(x) - sizes[peers.rank]) * per_row * x.element_size())
    seed = 0 if state is None else state.next_call()
    lengths = [wire.nbytes(read, rows * per_row) for rows in sizes]
    sent = x.new_zeros(sum(lengths), dtype=torch.uint8)
    for rank, (rows, run) in enumerate(zip(x.split(sizes), sent.split(lengths), strict=True)):
        format = wire.encode(rows.reshape(-1), read, run, derived(seed, peers.rank, rank))
        peers.traffic.encoded(format, rows.numel())
    runs = peers.all_to_all(sent, lengths, [wire.nbytes(read, rows * per_row) for rows in received])
    found = x.new_empty(sum(received) * per_row, dtype=torch.float32)
    parts = found.split([rows * per_row for rows in received])
    for run, part, (finite, *_) in zip(runs, parts, told, strict=True):
        wire.decode(run, read, part)
        if not finite:
            part.fill_(torch.nan)
    return found.to(tensor.device, x.dtype).view(sum(received), *rest)
