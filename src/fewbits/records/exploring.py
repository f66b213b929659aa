"""A design space of formats measured on one kind of data, and the best format within a budget."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class ExploredData:
    """The vectors on which formats were measured."""

    name: str  # of the distribution, or the path of the file
    about: str  # one sentence
    vectors: int
    length: int  # values of a vector: scales per channel are per vector
    seed: int
    scale_rule: str


@dataclass(frozen=True)
class ExploredFormat:
    """One format of the space."""

    format: str  # as the grammar writes it
    family: str  # of its elements: bdr, float, int, posit or lookup
    scale: str  # kind of its scales: "power of two", "float", "integer" or "none"
    bits_per_value: float
    qsnr_db: float
    proxy: float  # multiplier area times memory relative to FP8 E4M3, counted in bits
    bound_db: float  # below which no vector can fall, theorem 1 of the BDR paper; nan for other families


@dataclass(frozen=True)
class ExploredFront:
    """The formats that none of their kind beats in QSNR at no more cost, from low cost to high."""

    cost: str  # "bits" or "proxy"
    scale: str  # the kind of scales that formats had to have; "any"
    formats: tuple[str, ...]


@dataclass(frozen=True)
class PlacedFormat:
    """A named format beside the fronts: how far it lies below what the space has for no more cost."""

    format: ExploredFormat
    below_db: float  # of the front over bits; 0 is on the front, negative beyond it
    below_power_of_two_db: float  # the same, of the formats whose scales are powers of two
    below_proxy_db: float  # of the front over the proxy
    below_power_of_two_proxy_db: float


@dataclass(frozen=True)
class FrontSensitivity:
    """What the front of BDR loses when one of its parameters may have one value only."""

    parameter: str  # d1, k1, d2 or k2
    value: int
    formats: int  # of the space that have the value
    mean_db: float  # loss over bits, over the points of the front that it can reach; nan if there are none
    worst_db: float
    proxy_mean_db: float  # loss over the proxy
    proxy_worst_db: float


@dataclass(frozen=True)
class Exploration:
    """A design space on one kind of data."""

    data: ExploredData
    formats: tuple[ExploredFormat, ...]  # from few bits to many
    fronts: tuple[ExploredFront, ...]  # over bits and over the proxy, with any scale and with powers of two
    placed: tuple[PlacedFormat, ...]
    sensitivity: tuple[FrontSensitivity, ...]


@dataclass(frozen=True)
class Finalist:
    """A format that was best of its kind on the half that it was chosen on."""

    format: ExploredFormat  # its QSNR is that on the vectors that it was chosen on
    kind: str  # family, "table" for one fitted to the data, "named" for one that was named
    held_out_db: float  # QSNR on the other half of the vectors


@dataclass(frozen=True)
class FormatChoice:
    """The best format of at most so many bits per value, on held-out data."""

    data: ExploredData
    budget: float  # bits per value
    tried: int  # formats of the space within the budget
    tables: int  # tables that were fitted
    finalists: tuple[Finalist, ...]  # the best on the held-out half first

    @property
    def winner(self) -> str:
        """The format with the highest QSNR on the held-out half."""
        return self.finalists[0].format.format
