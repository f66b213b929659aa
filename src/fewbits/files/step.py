"""One tensor of a job, with its place in the destination."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from fewbits.files.byte_layout import TensorLayout
from fewbits.files.checkpoint import StoredTensor
from fewbits.files.encoding import Encoding
from fewbits.files.narrow_tensor import AnyStoredTensor, StoredNarrowTensor
from fewbits.files.safetensors_header import HeaderEntry


@dataclass(frozen=True)
class Step:
    """One tensor of the source and its entries in the destination."""

    tensor: AnyStoredTensor
    file: Path  # destination file
    encoding: Encoding | None = None  # None: an ordinary tensor
    values: StoredTensor | None = None  # what is quantized in the tensor's place; None: the tensor

    @property
    def layout(self) -> TensorLayout | None:
        """The layout of the narrow tensor, in the source or in the destination."""
        if isinstance(self.tensor, StoredNarrowTensor):
            return self.tensor.layout
        return self.encoding.becomes if self.encoding is not None and not self.encoding.kept else None

    @property
    def entries(self) -> Mapping[str, HeaderEntry]:
        """The entries to write, by name."""
        if self.encoding is not None:
            return self.encoding.entries
        return {self.tensor.name: HeaderEntry(self.tensor.dtype, self.tensor.shape)}
