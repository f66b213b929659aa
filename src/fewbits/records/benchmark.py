"""Time to quality: runs that train until a model is good enough, and what they say of recipes."""

from __future__ import annotations

import math
from dataclasses import dataclass

from fewbits.evidence import Evidence
from fewbits.records.precision import RanPrecision


@dataclass(frozen=True)
class Evaluation:
    """How good the model of a run was on the way."""

    step: int
    began: float  # on the run's clock, seconds
    seconds: float  # on the run's clock, when it ended
    value: float  # the metric on held-out data


@dataclass(frozen=True)
class BenchmarkRun:
    """One training by one recipe from one seed, until the target was reached or the steps were done."""

    recipe: str
    seed: int
    reached: bool
    seconds: float  # from before the data was touched until the clock stopped
    steps: int
    evaluations: tuple[Evaluation, ...]
    precision: RanPrecision
    resumed: int  # how often it went on after it was killed
    started_ms: int  # since 1970
    warnings: tuple[str, ...] = ()

    @property
    def seconds_to_target(self) -> float:
        """Seconds; infinite where the target was missed."""
        return self.seconds if self.reached else math.inf

    @property
    def steps_to_target(self) -> float:
        """Steps; infinite where the target was missed."""
        return self.steps if self.reached else math.inf


@dataclass(frozen=True)
class EnergyProxy:
    """What stands for the energy of one step, which was not measured: bits multiplied and moved."""

    bit_products: float  # multiply-adds of all products, each times the bits of its two operands
    bits_moved: float  # operands and results of the products, each once, as their formats hold them
    bits_sent: float | None  # by one process; None: torch's own hooks are not counted


@dataclass(frozen=True)
class RecipeResult:
    """The runs of one recipe, and what the rules make of them."""

    recipe: str
    runs: tuple[BenchmarkRun, ...]  # in the order in which they were made
    seconds: float  # to the target, the result of the runs; infinite: invalid
    samples: float  # to the target, by the same rule
    log_ratio: Evidence | None  # ln(seconds / those of FP32), paired by seeds; None: no pairs
    energy: EnergyProxy | None  # None: formats change on the way
    too_fast: bool | None  # fewer samples than the runs of FP32 explain; None: it was not tested
    untested: str = ""  # why not

    @property
    def is_valid(self) -> bool:
        """Whether enough runs reached the target, and not in fewer samples than FP32 explains."""
        return math.isfinite(self.seconds) and not self.too_fast

    @property
    def converged(self) -> int:
        """How many runs reached the target."""
        return sum(run.reached for run in self.runs)

    @property
    def mean_steps(self) -> float:
        """Mean steps of all runs, whether they reached the target or not."""
        return sum(run.steps for run in self.runs) / len(self.runs)


@dataclass(frozen=True)
class BenchmarkReport:
    """All recipes of one benchmark."""

    benchmark: str
    task: str
    metric: str
    lower_is_better: bool
    target: float
    evaluate_every: int  # steps
    steps: int  # at most
    batch_size: int
    lr: float
    train_samples: int
    eval_samples: int
    runs: int  # that a result takes
    processes: int
    codec: str
    cleared: tuple[str, ...]  # which caches were cleared before each run
    kept: tuple[str, ...]  # which were not
    recipes: tuple[RecipeResult, ...]


@dataclass(frozen=True)
class LogCheck:
    """What is wrong with a folder of logs: nothing, where there are no problems."""

    folder: str
    files: tuple[str, ...]
    problems: tuple[str, ...]
    official: str  # which checker looked besides ours; "": none did
    reason: str = ""  # why none did
