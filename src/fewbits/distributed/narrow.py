"""NarrowTensors between processes: their parts travel as they lie, and nothing is rounded."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import torch

from fewbits.distributed.arguments import check_has_values
from fewbits.distributed.peers import Peers
from fewbits.distributed.split_sizes import checked_sizes, row_counts
from fewbits.errors import ArgumentError
from fewbits.formats import shares_scale
from fewbits.tensor import NarrowTensor

Send = Callable[[torch.Tensor], torch.Tensor]


def checked(q: NarrowTensor, codec: object, what: str) -> None:
    """Raise unless the parts of ``q`` can be cut and joined along the first dimension.

    Raises:
        ArgumentError: a codec was given too, there are no values, or rows share what each part has once.
    """
    if codec is not None:
        raise ArgumentError(
            f"codec {codec} for {q}, which travels as it lies; leave it out, or dequantize it"
        )
    check_has_values(q, str(q))
    if not q.ndim or q.axis == 0:
        raise ArgumentError(
            f"{what} of {q}, whose blocks lie along the first dimension; quantize it along another, or give"
            " .dequantize() and a codec"
        )
    if shares_scale(q.format, "tensor"):
        raise ArgumentError(
            f"{what} of {q}, whose rows share one scale, another one on each process; give .dequantize() and"
            " a codec"
        )


def joined(q: NarrowTensor, rows: int, send: Send) -> NarrowTensor:
    """Return a tensor of so many rows whose parts are what ``send`` makes of the bytes of those of ``q``."""
    parts: list[torch.Tensor | None] = []
    for part in q.pieces:
        if part is None:
            parts.append(None)
            continue
        found = send(part.contiguous().reshape(len(part), math.prod(part.shape[1:])).view(torch.uint8))
        parts.append(found.reshape(-1).view(part.dtype).view(rows, *part.shape[1:]))
    return q.remade(tuple(parts), (rows, *q.shape[1:]), q.axis)


def described(q: NarrowTensor) -> str:
    """Return what processes compare."""
    kept = "" if q.sparsity is None else f" {q.sparsity}"
    return f"{q.format}{kept} of {q.dtype} and rows {tuple(q.shape[1:])}, axis {q.axis}"


def gathered(q: NarrowTensor, codec: object, peers: Peers) -> NarrowTensor:
    """Return the rows of all processes."""
    with peers.telling():
        checked(q, codec, "all_gather")
    rows = [r for r, *_ in peers.agree(f"all_gather of {described(q)}", [len(q)])]

    def send(octets: torch.Tensor) -> torch.Tensor:
        per_row = octets.shape[1]
        padded = octets.new_zeros(max(rows) * per_row)
        padded[: octets.numel()] = octets.reshape(-1)
        found = peers.all_gather(padded)
        return torch.cat([line[: n * per_row] for line, n in zip(found, rows, strict=True)])

    peers.traffic.count("all_gather", 0, wide=(peers.size - 1) * q.numel() * q.dtype.itemsize)
    peers.traffic.encoded(str(q.format), q.numel())
    return joined(q, sum(rows), send)


def exchanged(
    q: NarrowTensor, codec: object, peers: Peers, split_sizes: Sequence[int] | None
) -> NarrowTensor:
    """Return the rows that each process sent here."""
    with peers.telling():
        checked(q, codec, "all_to_all")
        sizes = checked_sizes(split_sizes, len(q), peers)
    peers.agree(f"all_to_all of {described(q)}")
    received = row_counts(sizes, peers)
    per_row = math.prod(q.shape[1:]) * q.dtype.itemsize
    peers.traffic.count("all_to_all", 0, wide=(len(q) - sizes[peers.rank]) * per_row)
    peers.traffic.encoded(str(q.format), q.numel())

    def send(octets: torch.Tensor) -> torch.Tensor:
        per_row = octets.shape[1]
        runs = peers.all_to_all(
            octets.reshape(-1), [n * per_row for n in sizes], [n * per_row for n in received]
        )
        return torch.cat(runs)

    return joined(q, sum(received), send)
