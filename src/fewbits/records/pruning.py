"""Records of models and tensors pruned to a pattern."""

from __future__ import annotations

from dataclasses import dataclass
from math import nan, prod

from fewbits.evidence import Evidence, paired


@dataclass(frozen=True)
class PrunedTensor:
    """One tensor that follows a pattern of structured sparsity."""

    tensor: str
    shape: tuple[int, ...]
    axis: int  # axis along which the groups lie
    density: float  # share of values that are not zero
    kept_magnitude: float  # share of the sum of magnitudes that pruning left

    @property
    def values(self) -> int:
        """Number of values, zeros among them."""
        return prod(self.shape)


@dataclass(frozen=True)
class PruneReport:
    """What pruning did to the tensors of a model."""

    pattern: str
    pruned: tuple[PrunedTensor, ...]
    left_alone: tuple[tuple[str, str], ...]  # (tensor, reason why it stays dense)

    @property
    def density(self) -> float:
        """Share of the values of the pruned tensors that are not zero."""
        return sum(t.density * t.values for t in self.pruned) / sum(t.values for t in self.pruned)


@dataclass(frozen=True)
class PruneStage:
    """One stage from the dense to the pruned and retrained model, with its metric for each seed."""

    stage: str  # "dense", "pruned", "dense again", "retrained" or "from scratch"
    recipe: str  # recipe of its last training
    values: tuple[float, ...]  # metric on held-out data, one per seed
    flip_rate: float  # share of mask entries that a step changed; mean over steps


@dataclass(frozen=True)
class PrunedProduct:
    """Bytes of one tensor, and time of its product with one vector, dense and compressed."""

    tensor: str
    format: str  # of its values
    dense_bytes: int
    sparse_bytes: int
    dense_seconds: float
    sparse_seconds: float


@dataclass(frozen=True)
class PrunedModel:
    """A model that was pruned, and retrained if it belongs to a task."""

    model: str  # a task, or a path
    metric: str  # "nll", "accuracy", or "" if no metric was measured
    lower_is_better: bool
    schedule: str
    steps: int  # of each training
    seeds: tuple[int, ...]
    stages: tuple[PruneStage, ...]  # the dense model first; () for a checkpoint
    report: PruneReport
    products: tuple[PrunedProduct, ...]
    resolution: float = 0.0  # smallest step of the metric, that of one test image; 0 for a continuous one

    @property
    def spread(self) -> float:
        """Largest less smallest metric of the dense models; nan for a single one."""
        dense = self.stages[0].values if self.stages else ()
        return max(dense) - min(dense) if len(dense) > 1 else nan

    @property
    def differences(self) -> tuple[float, ...]:
        """For each stage, the mean over seeds of (its metric - that of the dense model)."""
        return tuple(evidence.mean for evidence in self.evidence)

    @property
    def evidence(self) -> tuple[Evidence, ...]:
        """For each stage, the statistical evidence of that difference over the seeds."""
        dense = self.stages[0].values if self.stages else ()
        return tuple(paired(s.values, dense, self.resolution) for s in self.stages)
