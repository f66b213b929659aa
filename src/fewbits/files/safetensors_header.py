"""The header of a safetensors file: the offset of every tensor, known before the first value is written.

The header is deterministic: tensors are sorted by decreasing width of their dtype, so that each is aligned,
then by name in code-point order. The data starts at a multiple of eight bytes.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from math import prod

from fewbits.errors import ArgumentError

METADATA = "__metadata__"  # a key of the header beside the names of tensors
_LARGEST = 100_000_000  # the limit of the safetensors library


@dataclass(frozen=True)
class HeaderEntry:
    """One tensor of a file to be written."""

    dtype: str  # in the spelling of safetensors
    shape: tuple[int, ...]

    @property
    def nbytes(self) -> int:
        """Bytes of the values."""
        return -(-prod(self.shape) * width(self.dtype) // 8)


@dataclass(frozen=True)
class Header:
    """The first bytes of a file, and the layout of the rest."""

    octets: bytes  # length, JSON, spaces
    starts: Mapping[str, int]  # byte offset of each tensor in the file
    size: int  # bytes of the file


def width(dtype: str) -> int:
    """Return the bits of one value, which the names of all safetensors dtypes but BOOL contain."""
    bits = re.search(r"\d+", dtype)
    return int(bits[0]) if bits else 8


def header(tensors: Mapping[str, HeaderEntry], metadata: Mapping[str, str]) -> Header:
    """Return the header of a file with these tensors.

    Raises:
        ArgumentError: a name cannot be encoded in UTF-8, or the header is larger than readers accept.
    """
    names = sorted(tensors, key=lambda name: (-width(tensors[name].dtype), name))
    document: dict[str, object] = {METADATA: dict(sorted(metadata.items()))} if metadata else {}
    offsets, at = {}, 0
    for name in names:
        part = tensors[name]
        offsets[name], at = at, at + part.nbytes
        document[name] = {
            "dtype": part.dtype,
            "shape": list(part.shape),
            "data_offsets": [offsets[name], at],
        }
    try:
        text = json.dumps(document, ensure_ascii=False, separators=(",", ":")).encode()
    except UnicodeEncodeError:
        raise ArgumentError("a name or metadata holds half a surrogate pair; expected Unicode text") from None
    text += b" " * (-len(text) % 8)
    if len(text) > _LARGEST:
        raise ArgumentError(
            f"the header would have {len(text)} bytes, and readers accept {_LARGEST}; "
            "write the tensors into several files"
        )
    octets = len(text).to_bytes(8, "little") + text
    return Header(octets, {name: len(octets) + start for name, start in offsets.items()}, len(octets) + at)
