"""How the parts of narrow tensors become the entries of files: in the layout of fewbits, or in another's."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from fewbits.files.byte_layout import TensorLayout, part_name
from fewbits.files.checkpoint import StoredTensor
from fewbits.files.safetensors_header import Header, HeaderEntry
from fewbits.files.safetensors_header import header as safetensors_header

Write = Callable[[str, int, bytes], None]  # name of the entry, byte offset in it, bytes
Put = Callable[[str, int, bytes], None]  # suffix of the part, byte offset in it, bytes


@dataclass(frozen=True)
class Encoding:
    """The entries that hold one narrow tensor in a file."""

    becomes: TensorLayout
    entries: Mapping[str, HeaderEntry]  # by their names in the file
    put: Callable[[Write], Put]  # called once for the tensor, before its first part
    kept: bool = False  # the values are those of an ordinary tensor


@dataclass(frozen=True)
class Plan:
    """What a checkpoint becomes in a layout."""

    encodings: Mapping[str, Encoding]  # by the name of the tensor; all others stay as they are
    header: Callable[[Mapping[str, HeaderEntry], Mapping[str, str]], Header] = safetensors_header
    metadata: Mapping[str, str] = field(default_factory=dict)  # of every file
    texts: Mapping[str, str] = field(default_factory=dict)  # further files of the folder, by name
    copies: Sequence[Path] = ()  # files of the source's folder that go along
    views: Mapping[str, StoredTensor] = field(default_factory=dict)  # tensors that are read in another order
    shared: Mapping[str, Sequence[StoredTensor]] = field(default_factory=dict)  # have one outer scale
    refuses_nonfinite: bool = True  # other programs read the codes of NaN as something else
    headers: Mapping[Path, Header] = field(default_factory=dict)  # of files whose header is known already
    places: Mapping[str, Path] = field(default_factory=dict)  # files of tensors that go elsewhere, by name
    described: bool = False  # the header says what is narrow, with checksums: docs/layout.md


def own_encoding(name: str, becomes: TensorLayout) -> Encoding:
    """Return the entries of docs/layout.md: each part, and an empty tensor of the own name."""
    parts = {part_name(name, suffix): part for suffix, part in becomes.parts.items()}

    def put(write: Write) -> Put:
        return lambda suffix, at, octets: write(part_name(name, suffix), at, octets)

    return Encoding(becomes, {name: becomes.placeholder, **parts}, put)
