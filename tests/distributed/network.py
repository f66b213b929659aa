"""A network that carries messages one by one: each reduction as it is written, step by step.

Ranks have a clock, links carry one message at a time each way, and every value says which ranks are summed in
it. The time of a reduction is the latest clock.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fewbits.distributed.wire import nbytes
from fewbits.recipes import Codec
from fewbits.records import CodecRates

Sums = NDArray[np.int64]
Seconds = Callable[[int, int, float], float]  # (from, to, bytes)


@dataclass
class Simulation:
    """``given[r]`` is what rank r gives, (n,) int64; ``seconds`` is the time of a message."""

    given: list[Sums]
    codec: Codec
    rates: CodecRates
    seconds: Seconds

    def __post_init__(self) -> None:
        self.ranks = len(self.given)
        self.clock = [0.0] * self.ranks
        self.wide = self.codec.format is None and self.codec.density is None

    def exchange(self, messages: list[tuple[int, int, float]]) -> None:
        """Carry messages of a round, each rank one out and one in; all begin when both ends are ready."""
        assert len({a for a, _, _ in messages}) == len({b for _, b, _ in messages}) == len(messages)
        before = list(self.clock)
        for a, b, octets in messages:
            end = max(before[a], before[b]) + self.seconds(a, b, octets)
            self.clock[a], self.clock[b] = max(self.clock[a], end), max(self.clock[b], end)

    def work(self, rank: int, *, encode: int = 0, add: int = 0, decode: int = 0) -> None:
        """Let a rank round, add and unpack so many values."""
        rates = self.rates
        self.clock[rank] += 1e-9 * (encode * rates.encode_ns + add * rates.add_ns + decode * rates.decode_ns)

    def hop(self, rank: int, *, encode: int = 0, add: int = 0, decode: int = 0) -> None:
        """The same where float32 need not be copied before it travels."""
        self.work(rank, encode=0 if self.wide else encode, add=add, decode=0 if self.wide else decode)

    @property
    def total(self) -> Sums:
        return np.sum(self.given, axis=0)

    def gather_in_ring(self, octets: float) -> None:
        """Pass on what each rank has, p - 1 times."""
        for _ in range(self.ranks - 1):
            self.exchange([(r, (r + 1) % self.ranks, octets) for r in range(self.ranks)])

    def done(self, results: list[Sums]) -> float:
        """Return the time, after checking that all ranks have the sum."""
        for found in results:
            np.testing.assert_array_equal(found, self.total)
        return max(self.clock)


def owners(given: Simulation, small: list[int]) -> float:
    """Each rank sends each other one its piece; sums are gathered."""
    p, n = given.ranks, len(given.given[0])
    for octets in small:
        given.gather_in_ring(octets)
    if given.codec.density is not None:
        return _gathered(given)
    pieces = [np.array_split(x, p) for x in given.given]
    held = [[pieces[r][r]] for r in range(p)]
    for r in range(p):
        given.work(r, encode=n)
    for k in range(1, p):
        given.exchange([(r, (r + k) % p, _octets(given, pieces[r][(r + k) % p])) for r in range(p)])
        for r in range(p):
            held[(r + k) % p].append(pieces[r][(r + k) % p])
    sums = [np.sum(runs, axis=0) for runs in held]
    for r in range(p):
        given.work(r, add=sum(map(len, held[r])), encode=len(sums[r]))
    given.gather_in_ring(_octets(given, sums[0]))
    for r in range(p):
        given.work(r, decode=n)
    return given.done([np.concatenate(sums)] * p)


def ring(given: Simulation) -> float:
    """Sums pass from neighbour to neighbour, and then around once more."""
    if given.codec.density is not None:
        return _gathered(given)
    p = given.ranks
    pieces = [np.array_split(x, p) for x in given.given]
    for r in range(p):
        given.hop(r, encode=len(pieces[r][r]))
    for step in range(p - 1):
        sent = [(r, (r + 1) % p, (r - step) % p) for r in range(p)]
        given.exchange([(a, b, _octets(given, pieces[a][i])) for a, b, i in sent])
        moved = [pieces[a][i].copy() for a, _, i in sent]
        for (_, b, i), run in zip(sent, moved, strict=True):
            pieces[b][i] = pieces[b][i] + run
            given.hop(b, add=len(run), encode=len(run))  # for the next one, or for the way back
    for step in range(p - 1):
        sent = [(r, (r + 1) % p, (r + 1 - step) % p) for r in range(p)]
        given.exchange([(a, b, _octets(given, pieces[a][i])) for a, b, i in sent])
        moved = [pieces[a][i].copy() for a, _, i in sent]
        for (_, b, i), run in zip(sent, moved, strict=True):
            pieces[b][i] = run
    for r in range(p):
        given.hop(r, decode=len(given.given[0]))
    return given.done([np.concatenate(x) for x in pieces])


def tree(given: Simulation) -> float:
    """A binomial tree to rank 0, and back."""
    if given.codec.density is not None:
        return _doubled(given)
    p, n = given.ranks, len(given.given[0])
    sums = [x.copy() for x in given.given]
    distances = [2**i for i in range((p - 1).bit_length())]
    for d in distances:
        pairs = [(r, r - d) for r in range(d, p, 2 * d)]
        for a, _ in pairs:
            given.hop(a, encode=n)
        given.exchange([(a, b, _octets(given, sums[a])) for a, b in pairs])
        for a, b in pairs:
            sums[b] += sums[a]
            given.hop(b, add=n)
    given.hop(0, encode=n)
    for d in reversed(distances):
        pairs = [(r, r + d) for r in range(0, p - d, 2 * d)]
        given.exchange([(a, b, _octets(given, sums[a])) for a, b in pairs])
        for a, b in pairs:
            sums[b] = sums[a]
    for r in range(p):
        given.hop(r, decode=n)
    return given.done(sums)


def halving(given: Simulation) -> float:
    """Halves are exchanged with ever nearer partners, then gathered with ever farther ones."""
    p, n = given.ranks, len(given.given[0])
    power = 1 << (p.bit_length() - 1)
    sums = [np.array_split(x, power) for x in given.given]
    run = _octets(given, sums[0][0])
    spare = [(power + i, i) for i in range(p - power)]
    for a, _ in spare:
        given.hop(a, encode=n)
    given.exchange([(a, b, power * run) for a, b in spare])
    for a, b in spare:
        sums[b] = [x + y for x, y in zip(sums[b], sums[a], strict=True)]
        given.hop(b, add=n)
    own = [range(power)] * power
    d = power // 2
    while d:
        kept = [set(w[: len(w) // 2] if not r & d else w[len(w) // 2 :]) for r, w in enumerate(own)]
        sent = [[i for i in own[r] if i not in kept[r]] for r in range(power)]
        for r in range(power):
            given.hop(r, encode=sum(len(sums[r][i]) for i in sent[r]))
        given.exchange([(r, r ^ d, len(sent[r]) * run) for r in range(power)])
        before = [list(x) for x in sums[:power]]
        for r in range(power):
            own[r] = range(min(kept[r]), max(kept[r]) + 1)
            for i in own[r]:
                sums[r][i] = before[r][i] + before[r ^ d][i]
            given.hop(r, add=sum(len(sums[r][i]) for i in own[r]))
        d //= 2
    for r in range(power):
        given.hop(r, encode=sum(len(sums[r][i]) for i in own[r]))
    d = 1
    while d < power:
        given.exchange([(r, r ^ d, len(own[r]) * run) for r in range(power)])
        before = [(list(own[r]), list(sums[r])) for r in range(power)]
        for r in range(power):
            places, values = before[r ^ d]
            for i in places:
                sums[r][i] = values[i]
            joined = {*own[r], *places}
            own[r] = range(min(joined), max(joined) + 1)
        d *= 2
    given.exchange([(b, a, power * run) for a, b in spare])
    for a, b in spare:
        sums[a] = sums[b]
    for r in range(p):
        given.hop(r, decode=n)
    return given.done([np.concatenate(x) for x in sums])


def _octets(given: Simulation, values: Sums) -> int:
    return nbytes(given.codec, len(values))


def _gathered(given: Simulation) -> float:
    """What each rank keeps goes around."""
    n = len(given.given[0])
    for r in range(given.ranks):
        given.work(r, encode=n)
    given.gather_in_ring(_octets(given, given.given[0]))
    return _added(given)


def _doubled(given: Simulation) -> float:
    """What each rank keeps is gathered from ever farther ranks (Bruck)."""
    p, n = given.ranks, len(given.given[0])
    held = [[r] for r in range(p)]
    for r in range(p):
        given.work(r, encode=n)
    d = 1
    while d < p:
        count = min(d, p - d)
        given.exchange([(r, (r - d) % p, count * _octets(given, given.given[r])) for r in range(p)])
        before = [list(x) for x in held]
        for r in range(p):
            held[r] += before[(r + d) % p][:count]
        d *= 2
    assert all(sorted(ranks) == list(range(p)) for ranks in held)
    return _added(given)


def _added(given: Simulation) -> float:
    for r in range(given.ranks):
        given.work(r, add=given.ranks * len(given.given[0]))
    return given.done([given.total] * given.ranks)
