"""What a measurement is: frozen records that the measuring parts return and the reports print.

Records hold plain numbers and text only, so the same records give the same report, byte for byte.
Quantities carry their unit in the name: ``_db`` decibels, ``_bytes``, ``_fraction`` of all values.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import inf, log10, nan, prod
from statistics import fmean

from fewbits.evidence import Evidence, paired


@dataclass(frozen=True)
class Error:
    """What rounding one array to a format did to its values."""

    qsnr_db: float  # -10 log10(noise power / signal power); inf when nothing changed
    max_relative_error: float  # over the nonzero finite inputs
    mean_relative_error: float
    saturated_fraction: float  # finite inputs beyond the largest value the element could take
    flushed_fraction: float  # nonzero inputs that became zero


@dataclass(frozen=True)
class LayerScore:
    """One layer of a model in one format, averaged over seeds."""

    layer: str
    weight_qsnr_db: float
    activation_qsnr_db: float


@dataclass(frozen=True)
class TaskScore:
    """One format on one task: a model trained in FP32, cast without retraining, over several seeds.

    Where it was asked for, also models trained in the format from scratch, evaluated without a cast.
    """

    task: str  # "bytes" or "digits"
    metric: str  # "nll" (nats per byte, lower is better) or "accuracy" (percent, higher is better)
    format: str  # as the user would write it: a catalogue name or the grammar
    bits_per_value: float  # scales counted
    model_bytes: float  # the model's parameters, cast ones at bits_per_value, the rest in FP32
    values: tuple[float, ...]  # the metric in this format, one per seed
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

    @property
    def mean(self) -> float:
        """Mean of the metric over seeds."""
        return fmean(self.values)

    @property
    def difference(self) -> float:
        """Mean over seeds of (this format - FP32), each seed against its own FP32 model."""
        return fmean(v - b for v, b in zip(self.values, self.baseline, strict=True))

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
        pairs = zip(self.trained, self.trained_baseline, strict=True)
        return fmean(v - b for v, b in pairs) if self.trained else None

    @property
    def trained_evidence(self) -> Evidence | None:
        """What the seeds say about that difference; None where none were trained."""
        return paired(self.trained, self.trained_baseline, self.resolution) if self.trained else None


@dataclass(frozen=True)
class TrainRun:
    """One model trained by one recipe from one seed."""

    task: str
    metric: str  # "nll" (nats per byte) or "accuracy" (percent)
    lower_is_better: bool
    recipe: str
    seed: int
    steps: int
    value: float  # of the metric, on held-out data
    final_loss: float  # mean of the last steps, nats
    seconds_per_step: float
    bytes_per_value: float  # of parameters, gradients and optimizer states as they lie in memory
    warnings: tuple[str, ...]
    resolution: float = 0.0  # smallest step of the metric, that of one test image; 0 for a continuous one
    losses: tuple[float, ...] = ()  # mean of each `loss_every` steps, nats; the last one may be of fewer
    loss_every: int = 1


@dataclass(frozen=True)
class Stage:
    """One attempt at a system, successful or not.

    Attributes:
        precision: its name.
        method: the factorization: LU, Cholesky, QR or SVD.
        code: steps of refinement where it converged, else below zero as in cuSOLVER: -1 not worth trying,
            -2 overflow when narrowed, -3 a pivot that is zero or not positive, -5 overflow during refinement,
            -50 no convergence.
        inner: iterations of GMRES in those steps.
        factor_seconds: for the factorization, and the evidence gathered before it; 0 where it was kept.
        refine_seconds: for everything after it.
        reason: why it was left; empty where it gave the solution.
        history: the componentwise backward error max |r_i| / (|A| |x| + |b|)_i of the worst right-hand side:
            of the first solution, then after every step of refinement or iteration of GMRES; those within
            GMRES are its own estimates in the 2-norm.
    """

    precision: str
    method: str
    code: int
    inner: int
    factor_seconds: float
    refine_seconds: float
    reason: str
    history: tuple[float, ...]


@dataclass(frozen=True)
class SolveScore:
    """One linear system solved in one precision."""

    matrix: str
    unknowns: int
    precision: str  # asked for
    stages: tuple[Stage, ...]  # the last one gave the solution
    iterations: int  # steps of refinement
    backward_error: float  # normwise, infinity norms; of an iterative solver its true residual over |b|
    condition: float  # estimate, infinity norm, equilibrated; inf where no estimate can be believed
    seconds: float
    of_double: float | None  # time in double precision over this one; None where that was not measured
    goal: float  # the residual asked for
    measure: str  # what the residuals of the history are
    componentwise_error: float = nan  # backward error entry by entry; nan where it was not measured
    forward_error: float = nan  # estimate of the largest error over the largest unknown; likewise

    @property
    def path(self) -> tuple[str, ...]:
        """Each attempt as precision and code."""
        return tuple(f"{stage.precision}: {stage.code}" for stage in self.stages)


@dataclass(frozen=True)
class TensorScore:
    """One tensor of a checkpoint in one format."""

    tensor: str
    shape: tuple[int, ...]
    dtype: str
    format: str
    bits_per_value: float
    packed_bytes: int
    error: Error


@dataclass(frozen=True)
class TensorSummary:
    """One tensor of a checkpoint as it is stored, and the format proposed for it."""

    tensor: str
    shape: tuple[int, ...]
    dtype: str
    stored_bytes: int
    outlier_ratio: float  # largest magnitude over root mean square
    proposed: str | None  # None: keep it as it is
    proposed_bytes: int  # of the tensor in the file that `fewbits cast` would write
    reason: str  # why this format, or why none
    castable: bool = True  # whether `fewbits cast` would narrow it
    sensitivity: float = nan  # noise of the model's outputs over its own; nan where no model was measured


@dataclass(frozen=True)
class CheckpointReport:
    """A whole checkpoint measured in several formats."""

    path: str
    min_qsnr_db: float
    tensors: tuple[TensorSummary, ...]
    scores: tuple[TensorScore, ...]
    scale_rule: str = "floor"
    model: str | None = None  # the file whose model judged the tensors; None: their own QSNR did
    output_qsnr_db: float = nan  # of the model's outputs with every proposal followed; measured

    @property
    def weight_qsnr_db(self) -> float:
        """QSNR of the mean relative noise of what can be narrowed, with every proposal followed."""
        qsnr = {(s.tensor, s.format): s.error.qsnr_db for s in self.scores}
        measured = {s.tensor for s in self.scores}
        castable = [t for t in self.tensors if t.castable and t.tensor in measured]
        known = [qsnr.get((t.tensor, t.proposed or ""), inf) for t in castable]
        noise = [10.0 ** min(-q / 10, 300.0) if q < inf else 0.0 for q in known]
        return -10 * log10(fmean(noise)) if any(noise) else inf

    @property
    def stored_bytes(self) -> int:
        """Bytes of all tensors as stored."""
        return sum(t.stored_bytes for t in self.tensors)

    @property
    def proposed_bytes(self) -> int:
        """Bytes of all tensors if every proposal is followed."""
        return sum(t.proposed_bytes for t in self.tensors)


@dataclass(frozen=True)
class CastTensor:
    """One tensor of a checkpoint before and after its file was written in other formats."""

    tensor: str
    shape: tuple[int, ...]
    dtype: str  # as an ordinary tensor
    format: str | None  # what it is narrowed to, or restored from; None: kept as it is
    bytes_before: int
    bytes_after: int
    error: Error | None  # of narrowing
    sparsity: str | None = None  # a pattern; None: all values are stored


@dataclass(frozen=True)
class CastFormat:
    """All tensors of a checkpoint that were narrowed to, or restored from, one format."""

    format: str | None  # None: kept as they are
    tensors: int
    bytes_before: int
    bytes_after: int
    qsnr_db: float  # of all values together; nan where nothing was rounded
    worst_tensor: str | None
    worst_qsnr_db: float


@dataclass(frozen=True)
class CastReport:
    """A checkpoint written in narrow formats, or restored from them."""

    source: str
    destination: str
    restored: bool
    scale_rule: str
    formats: tuple[CastFormat, ...]
    tensors: tuple[CastTensor, ...]

    @property
    def bytes_before(self) -> int:
        """Bytes of all tensors in the source."""
        return sum(t.bytes_before for t in self.tensors)

    @property
    def bytes_after(self) -> int:
        """Bytes of all tensors in the destination."""
        return sum(t.bytes_after for t in self.tensors)


@dataclass(frozen=True)
class InspectedTensor:
    """One tensor of a file, a narrow one in place of its parts."""

    tensor: str
    shape: tuple[int, ...]
    dtype: str  # as an ordinary tensor
    format: str | None  # None: it is one
    stored_bytes: int
    sparsity: str | None = None  # a pattern; None: all values are stored

    @property
    def bits_per_value(self) -> float:
        """Bits in the file for one value, scales counted; nan where there are no values."""
        return 8 * self.stored_bytes / prod(self.shape) if prod(self.shape) else nan


@dataclass(frozen=True)
class InspectReport:
    """What a checkpoint holds, and what is wrong with it."""

    path: str
    tensors: tuple[InspectedTensor, ...]
    problems: tuple[str, ...]

    @property
    def values(self) -> int:
        """Number of values."""
        return sum(prod(t.shape) for t in self.tensors)

    @property
    def stored_bytes(self) -> int:
        """Bytes of all tensors."""
        return sum(t.stored_bytes for t in self.tensors)


@dataclass(frozen=True)
class MatrixScore:
    """A sparse matrix with its entries stored in one format."""

    matrix: str
    format: str
    bits_per_value: float
    values_bytes: int
    error: Error
    frobenius_error: float  # ||A - Q(A)||_F / ||A||_F
    condition: float  # 1-norm condition estimate of Q(A); inf when Q(A) is singular
    condition_fp64: float  # the same of A
    note: str


@dataclass(frozen=True)
class PrunedTensor:
    """One tensor that follows a pattern of structured sparsity."""

    tensor: str
    shape: tuple[int, ...]
    axis: int  # along which groups lie
    density: float  # share of values that are not zero
    kept_magnitude: float  # share of the sum of magnitudes that is left

    @property
    def values(self) -> int:
        """Number of values, zeros among them."""
        return prod(self.shape)


@dataclass(frozen=True)
class PruneReport:
    """What pruning did to the tensors of a model."""

    pattern: str
    pruned: tuple[PrunedTensor, ...]
    left_alone: tuple[tuple[str, str], ...]  # (tensor, why it stays dense)

    @property
    def density(self) -> float:
        """Share of the values of the pruned tensors that are not zero."""
        return sum(t.density * t.values for t in self.pruned) / sum(t.values for t in self.pruned)


@dataclass(frozen=True)
class PruneStage:
    """A model on its way from dense to sparse: how good it is, for each seed."""

    stage: str  # "dense", "pruned", "dense again", "retrained" or "from scratch"
    recipe: str  # by which it was trained last
    values: tuple[float, ...]  # of the metric, on held-out data
    flip_rate: float  # share of the entries of all masks that a step changed; mean


@dataclass(frozen=True)
class PrunedProduct:
    """What a tensor takes as it is stored, and its product with one vector, dense and compressed."""

    tensor: str
    format: str  # of its values
    dense_bytes: int
    sparse_bytes: int
    dense_seconds: float
    sparse_seconds: float


@dataclass(frozen=True)
class PrunedModel:
    """A model that was pruned, and trained again where a task says how."""

    model: str  # a task, or a path
    metric: str  # "nll", "accuracy", or "" where nothing tells how good it is
    lower_is_better: bool
    schedule: str
    steps: int  # of each training
    seeds: tuple[int, ...]
    stages: tuple[PruneStage, ...]  # the first one is dense; () for a checkpoint
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
        """Of each stage, the mean over seeds of (its metric - that of the dense model)."""
        dense = self.stages[0].values if self.stages else ()
        return tuple(fmean(v - d for v, d in zip(s.values, dense, strict=True)) for s in self.stages)

    @property
    def evidence(self) -> tuple[Evidence, ...]:
        """Of each stage, what the seeds say about that difference."""
        dense = self.stages[0].values if self.stages else ()
        return tuple(paired(s.values, dense, self.resolution) for s in self.stages)


@dataclass(frozen=True)
class Provenance:
    """What a reader needs to take the same measurement again."""

    command: str
    versions: tuple[tuple[str, str], ...]  # (package, version)
    seeds: tuple[int, ...] = ()
