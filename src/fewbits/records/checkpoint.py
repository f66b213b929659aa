"""A checkpoint measured in several formats, with a proposal for each tensor."""

from __future__ import annotations

from dataclasses import dataclass
from math import inf, isnan, log10, nan, prod
from statistics import fmean

from fewbits.records.error import Error


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
    outlier_ratio: float  # largest magnitude over root mean square; nan where squares leave float64's range
    proposed: str | None  # None: keep the tensor unchanged
    proposed_bytes: int  # of the tensor in the file that `fewbits cast` would write
    reason: str  # why this format was proposed, or none
    castable: bool = True  # whether `fewbits cast` can cast it
    sensitivity: float = nan  # relative noise of the outputs over that of the tensor; nan without a model


@dataclass(frozen=True)
class CheckpointReport:
    """A whole checkpoint measured in several formats."""

    path: str
    min_qsnr_db: float
    tensors: tuple[TensorSummary, ...]
    scores: tuple[TensorScore, ...]
    scale_rule: str = "floor"
    model: str | None = None  # MODULE:FUNCTION of the model that judged the tensors; None: their QSNR
    output_qsnr_db: float = nan  # of the model's outputs with every proposal applied; measured
    budget: float = nan  # bits per value that the proposal may take; nan: it keeps the QSNR asked for

    @property
    def bound(self) -> str:
        """What the proposal was made for, as the end of a sentence."""
        if isnan(self.budget):
            return f"keep {self.min_qsnr_db:g} dB"
        return f"lose least within {self.budget:g} bits per value"

    @property
    def proposed_bits_per_value(self) -> float:
        """Bits per value of the castable tensors that were measured, with every proposal applied."""
        measured = {s.tensor for s in self.scores}
        castable = [t for t in self.tensors if t.castable and t.tensor in measured]
        values = sum(prod(t.shape) for t in castable)
        return 8 * sum(t.proposed_bytes for t in castable) / values if values else nan

    @property
    def weight_qsnr_db(self) -> float:
        """QSNR of the mean relative noise of the castable tensors, with every proposal applied."""
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
        """Bytes of all tensors if every proposal is applied."""
        return sum(t.proposed_bytes for t in self.tensors)
