"""Records of the contents of a checkpoint."""

from __future__ import annotations

from dataclasses import dataclass
from math import nan, prod


@dataclass(frozen=True)
class InspectedTensor:
    """One tensor of a file; a narrow tensor is one entry, not its parts."""

    tensor: str
    shape: tuple[int, ...]
    dtype: str  # safetensors dtype of the ordinary tensor
    format: str | None  # None for an ordinary tensor
    stored_bytes: int
    sparsity: str | None = None  # N:M; None if all values are stored

    @property
    def bits_per_value(self) -> float:
        """Bits in the file per value, scales included; nan if there are no values."""
        return 8 * self.stored_bytes / prod(self.shape) if prod(self.shape) else nan


@dataclass(frozen=True)
class InspectReport:
    """The tensors of a checkpoint, and the problems found in it."""

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
