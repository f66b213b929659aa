"""What a checkpoint holds."""

from __future__ import annotations

from dataclasses import dataclass
from math import nan, prod


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
