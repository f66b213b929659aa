"""Sums over processes: narrow pieces go to their owner, who adds them in the order of ranks.

What every reduction here computes, Q being the rounding of the codec and x_r what rank r gives:

    sum = Q(x_0) + Q(x_1) + ... in float32, from left to right

and, where all ranks get the sum, Q(sum). So all ranks hold the same bits, whatever arrives first.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from fewbits.distributed import wire
from fewbits.distributed.peers import Peers
from fewbits.distributed.scaling import count_clipped, exponents, scaled
from fewbits.distributed.state import CodecState, derived
from fewbits.recipes import Codec


class Reduction:
    """One reduction of values that are cut into pieces, one for each process.

    Args:
        x: (n,) contiguous, what this process gives.
        pieces: length of each process's piece; they sum to n, and are the same on every process.
        codec: what travels.
        peers: the processes.
        mean: divide the sum by their number.
        layers: lengths of the parts of x that have a scale of their own; by default there is one.
        state: of the codec, if it has one.
        residual: (n,) float32, what rounding took so far; overwritten.
    """

    def __init__(
        self,
        x: torch.Tensor,
        pieces: Sequence[int],
        codec: Codec,
        peers: Peers,
        *,
        mean: bool,
        layers: Sequence[int] | None = None,
        state: CodecState | None = None,
        residual: torch.Tensor | None = None,
    ) -> None:
        self.codec, self.peers, self.pieces, self.mean = codec, peers, pieces, mean
        self.layers = [x.numel()] if layers is None else layers
        self.residual, self.state = residual, state
        self.seed = 0 if state is None else state.next_call()
        self.powers: list[int] | None = None
        if codec.aps or codec.auto_scale:
            x = x.float() + (0.0 if residual is None else residual)
            self.powers = exponents(x, self.layers, codec, peers, 1 if mean else peers.size, state)
            x = scaled(x, self.layers, self.powers)
            if residual is not None:
                residual.zero_()
        self.x = x

    @property
    def _own(self) -> slice:
        start = sum(self.pieces[: self.peers.rank])
        return slice(start, start + self.pieces[self.peers.rank])

    def own_sum(self) -> torch.Tensor:
        """Return the sum of this process's piece, float32, its layers still scaled."""
        codec, peers = self.codec, self.peers
        sizes = [wire.nbytes(codec, n) for n in self.pieces]
        sent = torch.empty(sum(sizes), dtype=torch.uint8)
        runs = sent.split(sizes)
        for rank, (values, left, run) in enumerate(
            zip(self.x.split(list(self.pieces)), self._cut(self.residual), runs, strict=True)
        ):
            wire.encode(values, codec, run, derived(self.seed, peers.rank, rank), left)
        if codec.auto_scale and self.state is not None:
            count_clipped(self.x, codec, peers, self.state)
        received = peers.all_to_all(sent, sizes, [sizes[peers.rank]] * peers.size)
        total = summed(received, codec, self.pieces[peers.rank])
        return total.div_(peers.size) if self.mean else total

    def _cut(self, x: torch.Tensor | None) -> Sequence[torch.Tensor | None]:
        return [None] * len(self.pieces) if x is None else x.split(list(self.pieces))

    def shared(self, total: torch.Tensor) -> torch.Tensor:
        """Round the sums of the pieces, send them to all processes, and return them, (n,) float32."""
        codec, peers = self.codec, self.peers
        longest = wire.nbytes(codec, max(self.pieces))
        mine = torch.zeros(longest, dtype=torch.uint8)
        run = mine[: wire.nbytes(codec, total.numel())]
        left = None if self.residual is None else torch.zeros_like(total)
        wire.encode(total, codec, run, derived(self.seed, peers.rank, "sum"), left)
        if self.residual is not None and left is not None:
            self.residual[self._own].add_(left, alpha=peers.size if self.mean else 1)
        found = torch.empty(sum(self.pieces), dtype=torch.float32)
        for row, values in zip(peers.all_gather(mine), found.split(list(self.pieces)), strict=True):
            wire.decode(row[: wire.nbytes(codec, values.numel())], codec, values)
        return scaled(found, self.layers, self.powers, -1)

    def close(self) -> None:
        """Bring what rounding took back to the scale of the values."""
        if self.residual is not None:
            scaled(self.residual, self.layers, self.powers, -1)


def summed(runs: Sequence[torch.Tensor], codec: Codec, n: int) -> torch.Tensor:
    """Return the sum of the values of some runs, (n,) float32, added from left to right.

    With ``kahan`` each addition's error is carried to the next (Kahan, Further Remarks on Reducing Truncation
    Errors, 1965).
    """
    total = torch.zeros(n, dtype=torch.float32)
    if not codec.kahan:
        for run in runs:
            wire.add(run, codec, total)
        return total
    carried = torch.zeros(n, dtype=torch.float32)
    for run in runs:
        values = torch.empty(n, dtype=torch.float32)
        wire.decode(run, codec, values)
        values -= carried
        larger = total + values
        carried = (larger - total) - values
        total = larger
    return total
