"""Sums over processes: narrow pieces go to their owner, who adds them in the order of ranks.

What every reduction here computes, Q being the rounding of the codec and x_r what rank r gives:

    sum = Q(x_0) + Q(x_1) + ... in float32, from left to right

and, where all ranks get the sum, Q(sum). So all ranks hold the same bits, whatever arrives first.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence

import torch

from fewbits.distributed import wire
from fewbits.distributed.arguments import is_finite
from fewbits.distributed.gathering import spread
from fewbits.distributed.memory import empty
from fewbits.distributed.peers import Peers
from fewbits.distributed.scaling import agreed_powers, clipped, count_clipped
from fewbits.distributed.state import CodecState, derived
from fewbits.recipes import Codec


def agreed(
    x: torch.Tensor,
    codec: Codec,
    peers: Peers,
    what: str,
    state: CodecState | None,
    keys: Sequence[Hashable],
    lengths: Sequence[int],
) -> tuple[bool, torch.Tensor | None, torch.Tensor | None]:
    """Return whether values are finite, or may be others in this codec; the residual; the velocity.

    Raises on every process if they differ in the call or in their states. Where values are not finite, the
    call counts, and the residual and the velocity stay.
    """
    with peers.telling():
        residual = None if state is None else state.residual(keys, lengths, x.device)
        velocity = None if state is None else state.velocity(keys, lengths, x.device)
        mine = is_finite(x, codec)
    told = peers.agree(what if state is None else f"{what}, {state}", [int(mine)])
    finite = all(flag for flag, *_ in told)
    if state is not None and not finite:
        state.next_call()
    return finite, residual, velocity


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
        velocity: (n,) float32, the momentum of what waits; overwritten.
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
        velocity: torch.Tensor | None = None,
    ) -> None:
        self.codec, self.peers, self.pieces, self.mean = codec, peers, pieces, mean
        self.residual, self.velocity, self.state = residual, velocity, state
        self.seed = 0 if state is None else state.next_call()
        scales = codec.aps or codec.auto_scale
        x = x.float() if scales and x.dtype not in (torch.bfloat16, torch.float16) else x
        if scales and residual is not None:
            x = residual.add_(x)  # from here on what is rounded lies there
        self.x = x
        parts = [x.numel()] if layers is None else layers
        self._times = 1 if mean else peers.size  # by which what is rounded after the addition can be larger
        self.powers = agreed_powers(x, parts, codec, peers, self._times, state)

    @property
    def _start(self) -> int:
        return sum(self.pieces[: self.peers.rank])

    @property
    def _length(self) -> int:
        return self.pieces[self.peers.rank]

    def own_sum(self, total: torch.Tensor) -> torch.Tensor:
        """Write the sum of this process's piece, float32, its layers still scaled, to ``total``."""
        runs = self._exchanged()
        for first, last in wire.parts(self.codec, self._length):
            self._add(runs, first, total[first:last])
        return total

    def shared(self, total: torch.Tensor, out: torch.Tensor) -> torch.Tensor:
        """Round the sums of the pieces, send them to all processes, and write them to ``out``, (n,)."""
        mine = empty(wire.nbytes(self.codec, self._length), torch.uint8, total.device)
        for first, last in wire.parts(self.codec, self._length):
            self._round(total[first:last], first, mine)
        spread(mine, self.codec, self.peers, self.pieces, out, self.powers)
        return out

    def sum_everywhere(self, out: torch.Tensor) -> None:
        """Write the sum to ``out``, (n,) float32: what both of the above do, a part at a time."""
        runs = self._exchanged()
        mine = empty(wire.nbytes(self.codec, self._length), torch.uint8, out.device)
        for first, last in wire.parts(self.codec, self._length):
            total = self._add(runs, first, empty(last - first, torch.float32, out.device))
            self._round(total, first, mine)
        del runs  # their memory takes what arrives next
        spread(mine, self.codec, self.peers, self.pieces, out, self.powers)

    def close(self) -> None:
        """Bring what rounding took back to the scale of the values."""
        if self.residual is not None and self.powers is not None:
            self.powers.scale(self.residual, 0, -1)

    def _exchanged(self) -> Sequence[torch.Tensor]:
        """Send each process its piece, and return the runs that arrive here, in the order of ranks."""
        codec, peers, beyond = self.codec, self.peers, 0
        sizes = [wire.nbytes(codec, n) for n in self.pieces]
        plain = wire.is_plain(self.x, codec)  # then values are sent as they lie
        rows: Sequence[torch.Tensor] = (
            self.x.view(torch.uint8) if plain else empty(sum(sizes), torch.uint8, self.x.device)
        ).split(sizes)

        def encoded(rank: int) -> torch.Tensor:
            nonlocal beyond
            if plain:
                peers.traffic.encoded("fp32", self.pieces[rank])
            else:
                beyond += self.encode(rank, rows[rank])
            return rows[rank]

        received = [sizes[peers.rank]] * peers.size
        runs = list(peers.exchange(encoded, received, "all_to_all"))
        if codec.auto_scale and self.state is not None:
            count_clipped(beyond, self.x.numel(), peers, self.state)
        return runs

    def encode(self, rank: int, run: torch.Tensor) -> int:
        """Encode the piece of a process; return how many of its values an automatic scale clips."""
        start, n = sum(self.pieces[:rank]), self.pieces[rank]
        seed = derived(self.seed, self.peers.rank, rank)
        if self.powers is not None:
            return self._encode_scaled(run, start, n, seed)
        piece = slice(start, start + n)
        left = None if self.residual is None else self.residual[piece]
        moving = None if self.velocity is None else self.velocity[piece]
        self._tell(wire.encode(self.x[piece], self.codec, run, seed, left, moving), n)
        return 0

    def _encode_scaled(self, run: torch.Tensor, start: int, n: int, seed: int) -> int:
        """Scale and encode the piece at ``start``; return how many values, or sums of such, are clipped."""
        assert self.powers is not None
        beyond = 0
        for first, last in wire.parts(self.codec, n):
            place = slice(start + first, start + last)
            scaled = empty(last - first, torch.float32, self.x.device).copy_(self.x[place])
            self.powers.scale(scaled, start + first)
            beyond += clipped(scaled, self.codec, self._times) if self.codec.auto_scale else 0
            left = None if self.residual is None else self.residual[place].zero_()
            self._tell(wire.encode(scaled, self.codec, run, seed, left, start=first, n=n), last - first)
        return beyond

    def _tell(self, format: str, values: int) -> None:
        self.peers.traffic.encoded(format, wire.kept(self.codec, values))

    def _add(self, runs: Sequence[torch.Tensor], first: int, total: torch.Tensor) -> torch.Tensor:
        """Write the sum or mean of a part of the own piece to ``total``."""
        add_runs(runs, self.codec, total, first, self._length)
        return total.div_(self.peers.size) if self.mean else total

    def _round(self, total: torch.Tensor, first: int, mine: torch.Tensor) -> None:
        """Encode a part of the own piece, and keep for the next call what its rounding took."""
        left = None if self.residual is None else torch.zeros_like(total)
        seed = derived(self.seed, self.peers.rank, "sum")
        format = wire.encode(total, self.codec, mine, seed, left, start=first, n=self._length)
        self._tell(format, len(total))
        if self.residual is not None and left is not None:
            place = self.residual[self._start + first :][: len(left)]
            place.add_(left, alpha=self.peers.size if self.mean else 1)


def add_runs(
    runs: Sequence[torch.Tensor], codec: Codec, total: torch.Tensor, start: int = 0, n: int | None = None
) -> None:
    """Write the sum of the values of some runs, or of a part, to ``total``, added from left to right.

    With ``kahan`` each addition's error is carried to the next (Kahan, Further Remarks on Reducing Truncation
    Errors, 1965).

    Args:
        runs: bytes, one for each process.
        codec: of the runs.
        total: (m,) float32, overwritten.
        start: of the part in each run.
        n: values of a run; None: m.
    """
    total.zero_()
    if not codec.kahan:
        for run in runs:
            wire.add(run, codec, total, start=start, n=n)
        return
    carried, values = torch.zeros_like(total), torch.empty_like(total)
    for run in runs:
        wire.decode(run, codec, values, start=start, n=n)
        values -= carried
        larger = total + values
        carried = (larger - total) - values
        total.copy_(larger)
