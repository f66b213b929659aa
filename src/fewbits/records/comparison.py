"""Records of formats compared on tasks: models trained in FP32 and cast, or trained in the format."""

from __future__ import annotations

from dataclasses import dataclass
from math import exp, inf
from statistics import fmean

from fewbits.evidence import Evidence, paired

_LARGEST_EXPONENT = 709.0  # of which the exponential is finite


@dataclass(frozen=True)
class LayerScore:
    """One layer of a model in one format, averaged over seeds."""

    layer: str
    weight_qsnr_db: float
    activation_qsnr_db: float


@dataclass(frozen=True)
class TaskScore:
    """One format on one task: a model trained in FP32, cast without retraining, over several seeds.

    Of a model of text there is one; values are then those of pieces of text, or of lines.

    The ``trained_`` fields describe models trained from scratch in the format, evaluated without a cast.
    """

    task: str  # "bytes" or "digits", or the folder of a model of text
    metric: str  # "nll" (nats per byte), "accuracy" (percent), "token_nll", ..., or what a task calls its own
    format: str  # as the user would write it: a catalogue name or the grammar
    bits_per_value: float  # scales counted
    model_bytes: float  # the model's parameters, cast ones at bits_per_value, the rest in FP32
    values: tuple[float, ...]  # the metric in this format, one per seed (or piece, line)
    baseline: tuple[float, ...]  # the metric of the same models in FP32, one per seed
    weight_qsnr_db: float
    activation_qsnr_db: float
    saturated_fraction: float  # of activations and weights together
    flushed_fraction: float
    area_memory_proxy: float | None  # relative to FP8 E4M3; a proxy, not a synthesis result
    layers: tuple[LayerScore, ...]
    trained: tuple[
        float, ...
    ] = ()  # the metric of models trained in this format, one per seed; () if not asked
    trained_baseline: tuple[float, ...] = ()  # the metric of models trained in FP32 by the same loop
    resolution: float = 0.0  # smallest step of the metric, that of one test image; 0 for a continuous one
    samples: str = "seeds"  # what values are paired over: "seeds"; of one model: "pieces" of text or "lines"
    method: str = ""  # how weights were chosen, "round" or "gptq", as in `fewbits cast`; "": cast directly
    logit_error: float | None = None  # root mean square over that of the logits in FP32; None: not measured
    left_wide: tuple[tuple[str, float], ...] = ()  # matrices that stay in FP32, and shares of all values
    lower_is_better: bool = True  # of a metric that reports do not know by name

    @property
    def perplexity(self) -> float | None:
        """Exponential of the mean of the metric, where that is of tokens; else None."""
        if self.metric != "token_nll":
            return None
        return exp(self.mean) if self.mean < _LARGEST_EXPONENT else inf

    @property
    def mean(self) -> float:
        """Mean of the metric over seeds."""
        return fmean(self.values)

    @property
    def difference(self) -> float:
        """Mean over seeds of (this format - FP32), each against its own FP32 model; 0 if both broke alike."""
        return self.evidence.mean

    @property
    def evidence(self) -> Evidence:
        """What the seeds say about that difference."""
        return paired(self.values, self.baseline, self.resolution)

    @property
    def trained_mean(self) -> float | None:
        """Mean over seeds of the metric of models trained in this format; None where none were."""
        return fmean(self.trained) if self.trained else None

    @property
    def trained_difference(self) -> float | None:
        """Mean over seeds of (trained in this format - trained in FP32); None where none were trained."""
        evidence = self.trained_evidence
        return None if evidence is None else evidence.mean

    @property
    def trained_evidence(self) -> Evidence | None:
        """What the seeds say about that difference; None where none were trained."""
        return paired(self.trained, self.trained_baseline, self.resolution) if self.trained else None
