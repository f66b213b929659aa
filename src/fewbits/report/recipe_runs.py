"""The runs of one recipe together, and what their seeds say."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean

from fewbits.evidence import Evidence, paired
from fewbits.records import TrainRun
from fewbits.report.judgement import verdict


@dataclass(frozen=True)
class RecipeRuns:
    """All runs of one recipe on one task, and those of the baseline with the same seeds, if there are any."""

    runs: tuple[TrainRun, ...]
    baseline: tuple[TrainRun, ...]

    @property
    def mean(self) -> float:
        """Mean of the metric over seeds."""
        return fmean(r.value for r in self.runs)

    @property
    def final_loss(self) -> float:
        """Mean over seeds of the loss of the last steps."""
        return fmean(r.final_loss for r in self.runs)

    @property
    def seconds_per_step(self) -> float:
        """Mean over seeds."""
        return fmean(r.seconds_per_step for r in self.runs)

    @property
    def evidence(self) -> Evidence | None:
        """What the seeds say about the difference from the baseline; None where no seed has both."""
        base = {r.seed: r.value for r in self.baseline}
        both = [r for r in self.runs if r.seed in base]
        if not both:
            return None
        return paired([r.value for r in both], [base[r.seed] for r in both], both[0].resolution)

    @property
    def differences(self) -> tuple[float, ...]:
        """The difference from the baseline for each seed that has both."""
        base = {r.seed: r.value for r in self.baseline}
        return tuple(r.value - base[r.seed] for r in self.runs if r.seed in base)

    @property
    def verdict(self) -> str:
        """Return "worse" or "better" than the baseline where that is evident, else ""."""
        return verdict(self.evidence, higher_is_better=not self.runs[0].lower_is_better)

    @property
    def slower(self) -> float | None:
        """Time of a step over the baseline's; None without a baseline."""
        theirs = fmean(r.seconds_per_step for r in self.baseline) if self.baseline else None
        return None if theirs is None else self.seconds_per_step / theirs


def grouped(runs: Sequence[TrainRun]) -> list[RecipeRuns]:
    """Return the runs of each recipe together, in the order of their first ones."""
    names = list(dict.fromkeys(r.recipe for r in runs))
    baseline = tuple(r for r in runs if r.recipe == "fp32")
    return [RecipeRuns(tuple(r for r in runs if r.recipe == name), baseline) for name in names]
