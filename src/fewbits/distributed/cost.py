"""What a reduction costs: bytes that a process sends, and seconds predicted from a model of the network.

A message of b bytes takes ``latency + b / bandwidth``, a process sends and receives one at a time, and both
directions of a link are as fast (the alpha-beta model; Hockney, The Communication Challenge for MPP, 1994).
What a process does to values takes the measured rates of a codec. Nothing overlaps: neither rounding with
messages, nor messages with each other. With p ranks, n values of which a run of k takes w(k) bytes, m = n/p,
and T(b) the time of a message, the messages of a reduction take

    owners    2 (p - 1) T(w(m))            pieces to their owners, all-gather; gather of n for a density
    ring      2 (p - 1) T(w(m))            the same bytes between neighbours
    tree      2 ceil(log2 p) T(w(n))       sums to a root, and back
    halving   2 sum_i T(2^i w(m)), i < log2 p: halves exchanged, then doubled
    levels    within nodes in float32, between them as owners, with n / (ranks of a node)

Ring, tree and halving are in Thakur, Rabenseifner and Gropp, Optimization of Collective Communication
Operations in MPICH, 2005, sections 4.1 to 4.5; levels in Jia et al., Highly Scalable Deep Learning Training
System with Mixed-Precision, 2018, section 3.3, and Shi et al., Towards Scalable Distributed Training of Deep
Learning on Public Cloud Clusters, 2021, section 4. This library runs ``owners``, and ``levels`` on a mesh.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from math import inf, isfinite

from fewbits.distributed.pieces import even
from fewbits.distributed.wire import nbytes
from fewbits.errors import ArgumentError
from fewbits.recipes import Codec
from fewbits.recipes import codec as read
from fewbits.records import CodecRates
from fewbits.tensor.inputs import is_count

AGREEMENT = 512  # bytes that each process announces before a reduction
_CLIPPED = 16  # bytes in which processes tell how much an automatic scale clipped


@dataclass(frozen=True)
class Link:
    """What a message takes: a latency, and its bytes at a bandwidth.

    Attributes:
        gigabits: bandwidth, 10^9 bits per second in each direction.
        latency_us: microseconds from the call to the first byte.
    """

    gigabits: float
    latency_us: float = 0.0

    def __post_init__(self) -> None:
        """Raise unless bandwidth and latency are numbers that a link can have."""
        if not 0 < self.gigabits <= inf:
            raise ArgumentError(f"a link of {self.gigabits:g} Gbit/s; expected a number above 0")
        if not (self.latency_us >= 0 and isfinite(self.latency_us)):
            raise ArgumentError(f"a latency of {self.latency_us:g} us; expected 0 or more")

    def seconds(self, octets: float) -> float:
        """Return the time of a message of so many bytes."""
        return 1e-6 * self.latency_us + 8e-9 * octets / self.gigabits

    def shared(self, flows: int) -> Link:
        """Return what one of so many messages at a time has of the link."""
        return replace(self, gigabits=self.gigabits / flows)


@dataclass(frozen=True)
class Network:
    """Ranks, and the links between them.

    Attributes:
        ranks: processes that reduce.
        link: of a node. Of several nodes all messages of a reduction not by levels count as if they took it.
        per_node: ranks of a node, which share its link where they send at the same time.
        inner: links within a node, each of one rank; None: a node is one rank.
    """

    ranks: int
    link: Link
    per_node: int = 1
    inner: Link | None = None

    def __post_init__(self) -> None:
        """Raise unless the ranks fill nodes whose links are known."""
        if self.ranks < 2:
            raise ArgumentError(f"{self.ranks} ranks; expected two or more, between which something travels")
        if self.per_node < 1:
            raise ArgumentError(f"{self.per_node} ranks in a node; expected 1 or more")
        if self.per_node > 1 and self.inner is None:
            raise ArgumentError(f"{self.per_node} ranks in a node and no link within it; give its speed")

    @property
    def nodes(self) -> int:
        """Nodes, the last of which may have fewer ranks."""
        return -(-self.ranks // self.per_node)

    @property
    def has_levels(self) -> bool:
        """Whether there are several nodes, each with as many ranks, and more than one."""
        return self.per_node > 1 and self.nodes > 1 and not self.ranks % self.per_node

    @property
    def slowest(self) -> Link:
        """The link that limits a reduction of all ranks: that of nodes, or within the only node."""
        return self.link if self.nodes > 1 or self.inner is None else self.inner

    @property
    def busy(self) -> Link:
        """What a rank has of that link while all ranks of a node send."""
        return self.link.shared(self.per_node) if self.nodes > 1 else self.slowest


@dataclass(frozen=True)
class Exchange:
    """Predicted seconds of one reduction, on the rank that takes longest."""

    codec_seconds: float  # rounding, adding and unpacking
    link_seconds: float  # messages

    @property
    def seconds(self) -> float:
        """Both, one after the other."""
        return self.codec_seconds + self.link_seconds

    def __add__(self, other: Exchange) -> Exchange:
        return Exchange(self.codec_seconds + other.codec_seconds, self.link_seconds + other.link_seconds)


def step_seconds(compute: float, exchange: Exchange, overlap: float = 0.0) -> float:
    """Return the time of a training step.

    Args:
        compute: seconds of the step without exchange.
        exchange: of its gradients.
        overlap: share of the compute during which messages travel unnoticed. Rounding is never hidden: it
            takes the processor that computes.
    """
    return compute + exchange.codec_seconds + max(exchange.link_seconds - overlap * compute, 0.0)


def sent_bytes(codec: str | Codec, n: int, ranks: int, *, layers: int = 1) -> int:
    """Return the bytes that a process sends in an all-reduce of ``n`` values: the most of all processes.

    They are those that :class:`Traffic` counts: values, scales, indices, and what processes agree on.

    Args:
        codec: a codec or its text.
        n: values of each process.
        ranks: processes.
        layers: how many have a scale of their own under ``aps``.

    Raises:
        ArgumentError: a hook of torch's, whose bytes are not counted, or a count that is none.
        FormatError: no such format.

    >>> round(sent_bytes("fp32", 1 << 20, 4) / sent_bytes("mxfp8_e4m3", 1 << 20, 4), 2)
    3.88
    """
    read_codec = counted(codec)
    counts: tuple[tuple[str, object, int], ...] = (("n", n, 0), ("ranks", ranks, 1), ("layers", layers, 1))
    for name, count, least in counts:
        if not is_count(count, least):
            raise ArgumentError(f"{name}={count!r}; expected a whole number of at least {least}")
    others = ranks - 1
    small = others * sum(announced(read_codec, layers))
    if read_codec.density is not None:
        return others * nbytes(read_codec, n) + small
    sizes = [nbytes(read_codec, k) for k in even(n, ranks, read_codec.format)]
    return sum(sizes) + (others - 1) * max(sizes) + small  # all pieces but the own, which goes to all others


def counted(codec: str | Codec) -> Codec:
    """Return a codec whose bytes are known.

    Raises:
        ArgumentError: it is a hook of torch's.
        FormatError: no such format.
    """
    found = read(codec)
    if found.hook:
        raise ArgumentError(
            f"{found} is a hook of torch's DistributedDataParallel, whose bytes are not counted; take another"
            " codec"
        )
    return found


def announced(codec: Codec, layers: int = 1) -> list[int]:
    """Return the bytes that each process tells all others, by gather, before a reduction."""
    return [AGREEMENT, *([layers] if codec.aps else []), *([_CLIPPED] if codec.auto_scale else [])]


def by_owners(
    codec: Codec, n: int, network: Network, rates: CodecRates, *, small: Sequence[int] | None = None
) -> Exchange:
    """Predict what this library does: pieces to their owners, who add them, and an all-gather of the sums.

    A codec with a density has one all-gather of what each process keeps, and each process adds all of it: its
    bytes grow with the ranks. Pieces, and the sums after, go straight to each process: all ranks of a node
    send at the same time and share its link. The small all-gathers before run in a ring.

    Args:
        codec: what travels.
        n: values of each process.
        network: the processes.
        rates: of the codec.
        small: bytes from each process in the small all-gathers before; None: those of one reduction.
    """
    p = network.ranks
    told = sum(_ring(network, octets) for octets in (announced(codec) if small is None else small))
    if codec.density is not None:
        return Exchange(
            _seconds(rates, encode=n, add=p * n),
            _each(network, nbytes(codec, n)) + told,
        )
    piece = _piece(codec, n, p)
    run = nbytes(codec, piece)
    return Exchange(
        _seconds(rates, encode=n + piece, add=p * piece, decode=n),
        2 * _each(network, run) + told,
    )


def by_ring(codec: Codec, n: int, network: Network, rates: CodecRates) -> Exchange:
    """Predict a ring: each sum passes p - 1 neighbours, and comes back by as many messages.

    A narrow sum is rounded again by each of them. What a density keeps goes around as it is.
    """
    p = network.ranks
    if codec.density is not None:
        return Exchange(_seconds(rates, encode=n, add=p * n), _ring(network, nbytes(codec, n)))
    piece = _piece(codec, n, p)
    return Exchange(
        _hops(codec, rates, encode=p * piece, add=(p - 1) * piece, decode=n),
        2 * _ring(network, nbytes(codec, piece)),
    )


def by_tree(codec: Codec, n: int, network: Network, rates: CodecRates) -> Exchange:
    """Predict a binomial tree: sums of all values to one rank, and the result back.

    Of ranks that are no power of two it takes at most that: a smaller branch has time to round.
    What a density keeps is gathered in rounds that double it, with Bruck's algorithm.
    """
    p = network.ranks
    rounds = (p - 1).bit_length()
    if codec.density is not None:
        run = nbytes(codec, n)
        sizes = [min(2**i, p - 2**i) * run for i in range(rounds)]
        return Exchange(_seconds(rates, encode=n, add=p * n), sum(map(network.busy.seconds, sizes)))
    return Exchange(
        _hops(codec, rates, encode=(rounds + 1) * n, add=rounds * n, decode=n),
        2 * rounds * network.slowest.seconds(nbytes(codec, n)),
    )


def by_halving(codec: Codec, n: int, network: Network, rates: CodecRates) -> Exchange:
    """Predict Rabenseifner's reduction: halves are exchanged and added, then gathered in rounds that double.

    Of ranks that are no power of two, those above it give their values to another one before, and get the
    result after. Not for a density: sums of what is kept are not sparse.
    """
    p = network.ranks
    rounds = p.bit_length() - 1
    power = 1 << rounds
    piece = _piece(codec, n, power)
    run, link = nbytes(codec, piece), network.busy
    spare = Exchange(0.0, 0.0)
    if p > power:
        whole = link.seconds(power * run)
        spare = Exchange(_hops(codec, rates, encode=n, add=n), 2 * whole)
    pieces = power - 1  # power / 2 + power / 4 + ... + 1
    return spare + Exchange(
        _hops(codec, rates, encode=power * piece, add=pieces * piece, decode=n),
        2 * sum(link.seconds(2**i * run) for i in range(rounds)),
    )


def by_levels(codec: Codec, n: int, network: Network, rates: CodecRates, *, wide: CodecRates) -> Exchange:
    """Predict a mesh of two dimensions: sums within nodes in float32, sums of nodes in the codec.

    Each rank of a node reduces its own piece with one rank of every other node, all at the same time.

    Args:
        codec: between nodes.
        n: values of each process.
        network: has a link within nodes.
        rates: of the codec.
        wide: of ``fp32``.

    Raises:
        ArgumentError: one node, or ranks that do not fill nodes.
    """
    if not network.has_levels or network.inner is None:
        raise ArgumentError(
            f"{network.ranks} ranks, {network.per_node} in a node, have no two levels; expected several"
            " nodes that are full"
        )
    within = Network(network.per_node, network.inner)
    piece = _piece(Codec(), n, within.ranks)
    between = by_owners(codec, piece, Network(network.nodes, network.busy), rates)
    return by_owners(Codec(), n, within, wide) + between


def reductions(
    codec: Codec, n: int, network: Network, rates: CodecRates, wide: CodecRates
) -> dict[str, Exchange]:
    """Return the prediction for each reduction that fits, by name; those that this library runs come first.

    Args:
        codec: what travels.
        n: values of each process.
        network: the processes.
        rates: of the codec.
        wide: of ``fp32``.
    """
    found = {"owners": by_owners(codec, n, network, rates)}
    if network.has_levels:
        found["levels"] = by_levels(codec, n, network, rates, wide=wide)
    others: dict[str, Callable[[Codec, int, Network, CodecRates], Exchange]] = {
        "ring": by_ring,
        "tree": by_tree,
    }
    others |= {} if codec.density is not None else {"halving": by_halving}
    return found | {name: predict(codec, n, network, rates) for name, predict in others.items()}


OWN = ("owners", "levels")
"""The reductions that this library runs."""


def _ring(network: Network, octets: int) -> float:
    """Return the time of an all-gather in a ring, to which each process gives so many bytes."""
    return (network.ranks - 1) * network.slowest.seconds(octets)


def _each(network: Network, octets: int) -> float:
    """Return the time in which each process sends so many bytes to each other one."""
    return (network.ranks - 1) * network.busy.seconds(octets)


def _piece(codec: Codec, n: int, ranks: int) -> int:
    """Return the values of the longest piece, the first one that :func:`even` cuts."""
    unit = 1 if codec.format is None else codec.format.block_size
    return min(-(-n // (ranks * unit)) * unit, n)


def _seconds(rates: CodecRates, encode: int = 0, add: int = 0, decode: int = 0) -> float:
    """Return the time of so many values."""
    return 1e-9 * (encode * rates.encode_ns + add * rates.add_ns + decode * rates.decode_ns)


def _hops(codec: Codec, rates: CodecRates, encode: int = 0, add: int = 0, decode: int = 0) -> float:
    """Return the time of so many values where float32 travels out of, and into, the sum itself."""
    return _seconds(rates, 0 if codec.format is None else encode, add, 0 if codec.format is None else decode)
