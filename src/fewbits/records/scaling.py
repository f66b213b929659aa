"""Codecs compared in training, and predictions of what they save on many machines."""

from __future__ import annotations

from dataclasses import dataclass
from statistics import fmean

from fewbits.evidence import Evidence, paired

Ranges = tuple[tuple[float, float], ...]
"""From so much to so much."""


@dataclass(frozen=True)
class CodecRates:
    """Nanoseconds that one thread of a machine takes for each value of a run, in one codec."""

    codec: str
    encode_ns: float  # from float32 to what travels
    add_ns: float  # what arrived, decoded and added to a sum
    decode_ns: float  # what arrived, to float32


@dataclass(frozen=True)
class StepTime:
    """A step of training as predicted for links of one speed."""

    gigabits: float  # of a link, in a second
    seconds: float


@dataclass(frozen=True)
class CodecScore:
    """One codec on one task, beside FP32 on the wire from the same seeds."""

    codec: str
    bits_per_value: float  # of a gradient, as one process sends it: scales and indices counted
    bytes_sent: float  # by a process in a step, measured
    bytes_wide: float  # that the same values take in their own dtype
    relative_error: float  # of one mean of gradients: |mean - exact| / |exact|, 2-norms, exact in float64
    values: tuple[float, ...]  # the metric on held-out data after training, one per seed
    baseline: tuple[float, ...]  # with FP32 on the wire, of the same seeds
    train_losses: tuple[float, ...]  # mean of the last steps, nats, one per seed
    predicted: tuple[StepTime, ...]  # one for each speed of links
    resolution: float = 0.0  # smallest step of the metric, that of one test image; 0 for a continuous one

    @property
    def mean(self) -> float:
        """Mean of the metric over seeds."""
        return fmean(self.values)

    @property
    def differences(self) -> tuple[float, ...]:
        """This codec minus FP32, one per seed."""
        return tuple(v - b for v, b in zip(self.values, self.baseline, strict=True))

    @property
    def evidence(self) -> Evidence:
        """What the seeds say about the mean of those differences."""
        return paired(self.values, self.baseline, self.resolution)


@dataclass(frozen=True)
class CodecComparison:
    """Codecs compared on one task."""

    task: str
    metric: str  # "nll" (nats per byte), "accuracy" (percent), ...
    lower_is_better: bool
    steps: int
    seeds: tuple[int, ...]
    processes: int
    parameters: int  # values of the gradient that is exchanged in each step
    compute_seconds: float  # of a step without exchange, of one process's part of the batch, one thread
    latency_us: float  # of a message, for the predictions
    scores: tuple[CodecScore, ...]
    rates: tuple[CodecRates, ...]  # of this machine


@dataclass(frozen=True)
class PredictedStep:
    """The step of one codec on one number of ranks, as predicted."""

    codec: str
    ranks: int
    own_reduction: str  # the faster one of those that this library runs
    own_seconds: float  # of the whole step with it
    best_reduction: str  # the fastest of all
    codec_seconds: float  # of that step: rounding, adding and unpacking
    link_seconds: float  # of that step: messages, hidden ones too
    step_seconds: float
    efficiency: float  # share of that step that is compute
    pays_gigabits: Ranges  # speeds of links on which it is faster than fp32


@dataclass(frozen=True)
class CodecLimit:
    """On how many ranks a codec makes a step faster than FP32, of the powers of two, or of nodes so many."""

    codec: str
    pays_ranks: tuple[tuple[int, int], ...]  # from so many to so many


@dataclass(frozen=True)
class Prediction:
    """Steps of a training on many ranks, predicted from a model of the network and rates of codecs."""

    parameters: int
    compute_seconds: float  # of a step without exchange
    gigabits: float  # of a node's link, in a second
    latency_us: float  # of a message
    per_node: int  # ranks of a node
    inner_gigabits: float | None  # of links within a node; None for one rank in a node
    overlap: float  # share of the compute behind which messages hide
    tried_ranks: tuple[int, int]  # between which limits were looked for
    tried_gigabits: tuple[float, float]
    steps: tuple[PredictedStep, ...]
    limits: tuple[CodecLimit, ...]
    rates: tuple[CodecRates, ...]
    rates_from: str  # a file, or "measured here"
