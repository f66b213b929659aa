"""What each process has, rounded, on all of them."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from fewbits.distributed import wire
from fewbits.distributed.memory import empty
from fewbits.distributed.peers import Peers
from fewbits.distributed.scaling import Powers
from fewbits.recipes import Codec


def all_gathered(
    x: torch.Tensor,
    codec: Codec,
    peers: Peers,
    lengths: Sequence[int],
    seed: int,
    *,
    finite: Sequence[int] | None = None,
    out: torch.Tensor | None = None,
) -> torch.Tensor:
    """Return the rounded values of all processes in a row, (sum of lengths,) float32.

    Args:
        x: (n,) contiguous, what this process has.
        codec: what travels.
        peers: the processes.
        lengths: values of each process.
        seed: of stochastic rounding.
        finite: 0 for a process whose values are not, in a codec that cannot say so: NaN comes from it.
        out: float32, contiguous, on x's device, where the values are written; None: new memory.
    """
    found = empty(sum(lengths), torch.float32, x.device) if out is None else out
    mine = empty(wire.nbytes(codec, x.numel()), torch.uint8, x.device)
    peers.traffic.encoded(wire.encode(x, codec, mine, seed), x.numel())
    spread(mine, codec, peers, lengths, found)
    for part, carried in zip(found.split(list(lengths)), finite or [1] * len(lengths), strict=True):
        if not carried:
            part.fill_(torch.nan)
    return found


def spread(
    mine: torch.Tensor,
    codec: Codec,
    peers: Peers,
    lengths: Sequence[int],
    out: torch.Tensor,
    powers: Powers | None = None,
) -> None:
    """Send a run to all processes, and write the values of all runs to ``out``, one after the other.

    Args:
        mine: this process's run.
        codec: of the runs.
        peers: the processes.
        lengths: values of each run.
        out: (sum of lengths,) float32, contiguous.
        powers: what scaled them; they are brought back.
    """
    parts, start = out.split(list(lengths)), 0
    sizes = [wire.nbytes(codec, n) for n in lengths]
    # What travels as it lies is received where it is to be.
    plain = wire.is_plain(out, codec) and out.device.type == "cpu"
    places = [part.view(torch.uint8) for part in parts] if plain else None
    runs = peers.exchange(lambda rank: mine, sizes, "all_gather", places)
    for rank, (run, part, n) in enumerate(zip(runs, parts, lengths, strict=True)):
        if places is None or run is not places[rank]:
            for first, last in [(0, n)] if powers is None else wire.parts(codec, n):
                wire.decode(run, codec, part[first:last], start=first, n=n)
                if powers is not None:
                    powers.scale(part[first:last], start + first, -1)
        start += n
