"""Records of a checkpoint written in other formats."""

from __future__ import annotations

from dataclasses import dataclass

from fewbits.records.error import Error


@dataclass(frozen=True)
class CastTensor:
    """One tensor of a checkpoint before and after its file was written in other formats."""

    tensor: str
    shape: tuple[int, ...]
    dtype: str  # safetensors dtype of the ordinary tensor
    format: str | None  # cast to it or restored from it; None if unchanged
    bytes_before: int
    bytes_after: int
    error: Error | None  # of the cast
    sparsity: str | None = None  # N:M; None if all values are stored


@dataclass(frozen=True)
class CastFormat:
    """All tensors of a checkpoint that were cast to, or restored from, one format."""

    format: str | None  # None for unchanged tensors
    tensors: int
    bytes_before: int
    bytes_after: int
    qsnr_db: float  # over all values; nan if nothing was rounded
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
