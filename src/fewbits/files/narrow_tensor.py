"""One narrow tensor of a checkpoint, in whatever layout its file has."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from io import BufferedReader
from pathlib import Path

from fewbits.files.byte_layout import TensorLayout
from fewbits.files.checkpoint import StoredTensor


@dataclass(frozen=True)
class StoredNarrowTensor:
    """One narrow tensor of a checkpoint, as its file describes it."""

    name: str
    layout: TensorLayout
    parts: Mapping[str, StoredTensor]  # by suffix
    file: Path

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of the ordinary tensor that it represents."""
        return self.layout.shape

    @property
    def dtype(self) -> str:
        """The dtype of that tensor, in the spelling of safetensors."""
        return self.layout.dtype

    @property
    def stored_bytes(self) -> int:
        """Bytes of all parts."""
        return sum(part.stored_bytes for part in self.parts.values())


AnyStoredTensor = StoredTensor | StoredNarrowTensor


@dataclass(frozen=True)
class TranslatedPart(StoredTensor):
    """A part that another program stores in another shape or with other bits, translated as it is read."""

    translate: Callable[[bytearray], bytearray] = field(default=lambda octets: octets, compare=False)

    def read(self, file: BufferedReader, at: int, size: int) -> bytearray:
        """Return ``size`` bytes from byte ``at`` on, as :mod:`fewbits.files.byte_layout` has them."""
        return self.translate(super().read(file, at, size))
