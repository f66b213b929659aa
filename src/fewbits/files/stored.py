"""How a narrow tensor lies in a safetensors file: its parts, and the metadata that says how to read them.

docs/layout.md is this module in words.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, replace
from math import gcd, prod
from typing import Any, NamedTuple

from fewbits.errors import DataError, FormatError
from fewbits.files.checkpoint import FLOATS, StoredTensor
from fewbits.files.header import Part
from fewbits.files.lines import is_kernel, lines
from fewbits.formats import CATALOGUE, Format, Pattern, parse, pattern
from fewbits.kernels.arrays.nm import zeros
from fewbits.kernels.bits.layout import groups, layout
from fewbits.kernels.bits.nm_stream import block_size, stream_bytes
from fewbits.kernels.bits.packing import line_bytes

KEY = "fewbits"  # in __metadata__ of the header
VERSION = 2
READABLE = (1, 2)
SUFFIXES = ("codes", "scales", "shifts", "outer")

_CHECKSUM = re.compile("[0-9a-f]{8}")
_LARGEST_COUNT = 2**63 - 1  # values of a tensor
_MOST_AXES = 64


class Stream(NamedTuple):
    """One part as bits: an item of ``bits`` bits for every ``group`` values of a line."""

    bits: int
    group: int | str  # a count, "channel" (one item for each line) or "tensor" (one item in all)
    sparsity: Pattern | None = None  # of the codes, where they are streams

    def in_line(self, n: int) -> int:
        """Return the bytes of a line of ``n`` values."""
        if self.sparsity is not None:
            return stream_bytes(n, self.bits, self.sparsity)
        return int(line_bytes(groups((n,), self.group)[-1], self.bits))

    @property
    def multiple(self) -> int:
        """Values after which a line is at a byte and at the end of a group."""
        if self.sparsity is not None:
            return block_size(self.sparsity)
        return 1 if isinstance(self.group, str) else self.group * (8 // gcd(self.bits, 8))


@dataclass(frozen=True)
class Stored:
    """What the metadata says about one narrow tensor."""

    format: Format
    shape: tuple[int, ...]  # the tensor's own
    axis: int  # of the shape that was quantized, counted from the front
    dtype: str  # what it was and is restored to, as safetensors writes it
    view: tuple[int, ...] | None = None  # the shape that was quantized where it is not the tensor's own
    sparsity: Pattern | None = None  # along the axis

    @property
    def quantized_shape(self) -> tuple[int, ...]:
        """The shape that was quantized."""
        return self.shape if self.view is None else self.view

    @property
    def parts(self) -> dict[str, Part]:
        """The tensors that hold it, by the ends of their names."""
        shapes = layout(self.format, self.quantized_shape, self.axis, self.sparsity)
        return {
            suffix: Part("F32" if suffix == "outer" else "U8", shape)
            for suffix, shape in zip(SUFFIXES, shapes, strict=True)
            if shape is not None
        }

    @property
    def placeholder(self) -> Part:
        """What bears the tensor's own name: without a value, so that nobody takes it for the tensor."""
        return Part(self.dtype, (0,))

    @property
    def streams(self) -> dict[str, Stream]:
        """The same parts as streams of bits."""
        streams = {
            suffix: Stream(group.bits, group.size)
            for suffix, group in zip(SUFFIXES, self.format.groups, strict=True)
            if group is not None
        }
        return {**streams, "codes": Stream(self.format.groups.codes.bits, 1, self.sparsity)}

    @property
    def nbytes(self) -> int:
        """Bytes of all parts."""
        return sum(part.nbytes for part in self.parts.values())


def as_lines(tensor: StoredTensor, fmt: Format, sparsity: Pattern | None = None) -> Stored:
    """Return how a tensor of a checkpoint is stored in a format: blocks along its lines.

    A sparsity counts for matrices whose lines are whole groups; others keep all their values.
    """
    if sparsity is not None and len(tensor.shape) == 2 and tensor.shape[1] % sparsity.group == 0:
        return Stored(fmt, tensor.shape, 1, tensor.dtype, sparsity=sparsity)
    if is_kernel(tensor.shape):
        return Stored(fmt, tensor.shape, 1, tensor.dtype, lines(tensor.shape))
    return Stored(fmt, tensor.shape, len(tensor.shape) - 1, tensor.dtype)


def part_name(tensor: str, suffix: str) -> str:
    """Return the name of one part in the file."""
    return f"{tensor}.{suffix}"


def metadata_text(tensors: Mapping[str, Stored], checksums: Mapping[str, str]) -> str:
    """Return the text under the key ``fewbits``; the same arguments give the same text.

    Args:
        tensors: the narrow ones, by name.
        checksums: of all that is stored, parts and ordinary tensors, by name.
    """
    told = {name: _told(stored) for name, stored in tensors.items()}
    document = {"crc32": dict(checksums), "tensors": told, "version": VERSION}
    return json.dumps(document, ensure_ascii=False, separators=(",", ":"), sort_keys=True)


def _told(stored: Stored) -> dict[str, Any]:
    about: dict[str, Any] = {
        "axis": stored.axis,
        "dtype": stored.dtype,
        "format": stored.format.grammar,
        "shape": list(stored.shape),
    }
    if stored.format.name in CATALOGUE:
        about["name"] = stored.format.name
    if stored.view is not None:
        about["view"] = list(stored.view)
    if stored.sparsity is not None:
        about["sparsity"] = str(stored.sparsity)
    return about


class Metadata(NamedTuple):
    """What a file says about its narrow tensors."""

    tensors: dict[str, Stored]
    checksums: dict[str, str]  # by name in the file
    problems: list[str]  # a sentence for each thing that is wrong
    version: int = VERSION


def read_metadata(text: str) -> Metadata:
    """Read the text under the key ``fewbits``."""
    try:
        document = json.loads(text, object_pairs_hook=_once)
    except (ValueError, RecursionError) as error:
        return _unread(f"is not JSON ({error!s:.200})")
    version = document.get("version") if isinstance(document, dict) else None
    if version not in READABLE or isinstance(version, bool | float):
        return _unread(f"has version {version!r:.60}; expected 1 or {VERSION}: use a newer fewbits")
    tensors = document.get("tensors")
    if not isinstance(tensors, dict):
        return _unread("has no object 'tensors'")
    found, problems = {}, []
    for name, told in tensors.items():
        try:
            found[name] = _read(told)
        except (DataError, FormatError) as error:
            problems.append(f"tensor {name!r:.200}: {error}")
    checksums = document.get("crc32") if version > 1 else {}
    if not isinstance(checksums, dict) or not all(
        isinstance(c, str) and _CHECKSUM.fullmatch(c) for c in checksums.values()
    ):
        checksums = {}
        problems.append(
            f"the metadata {KEY!r} has no object 'crc32' of eight hexadecimal digits for each name"
        )
    return Metadata(found, checksums, problems, version)


def _unread(what: str) -> Metadata:
    return Metadata({}, {}, [f"the metadata {KEY!r} {what}"])


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        name = Counter(name for name, _ in pairs).most_common(1)[0][0]
        raise DataError(f"{name!r:.200} is given twice")
    return found


def _read(told: Any) -> Stored:
    if not isinstance(told, dict):
        raise DataError("expected an object with format, shape, axis and dtype")
    unknown = sorted(set(told) - {"axis", "dtype", "format", "name", "shape", "sparsity", "view"})
    if unknown:
        raise DataError(f"the field {unknown[0]!r:.60} is unknown; use a newer fewbits")
    fmt, dtype, axis = told.get("format"), told.get("dtype"), told.get("axis")
    if not isinstance(fmt, str):
        raise DataError(f"format={fmt!r:.60} is not a text")
    if not isinstance(told.get("name", ""), str):
        raise DataError(f"name={told['name']!r:.60} is not a text")
    if not isinstance(dtype, str) or dtype not in FLOATS:
        raise DataError(f"dtype={dtype!r:.60} is not one of {', '.join(FLOATS)}")
    shape = _shape("shape", told.get("shape"))
    view = _shape("view", told["view"]) if "view" in told else None
    if view is not None and prod(view) != prod(shape):
        raise DataError(f"view={list(view)} has {prod(view)} values and shape={list(shape)} {prod(shape)}")
    most = max(len(shape if view is None else view), 1)
    if isinstance(axis, bool) or not isinstance(axis, int) or not 0 <= axis < most:
        raise DataError(f"axis={axis!r:.60} is not an integer from 0 to {most - 1}")
    whole = Stored(parse(fmt), shape, axis, dtype, view)
    return replace(whole, sparsity=_sparsity(told["sparsity"], whole)) if "sparsity" in told else whole


def _sparsity(told: Any, stored: Stored) -> Pattern:
    if not isinstance(told, str):
        raise DataError(f"sparsity={told!r:.60} is not a text")
    found = pattern(told)
    if str(found) != told:
        raise DataError(f"sparsity={told!r:.60} is written {found}")
    n = (stored.quantized_shape or (1,))[stored.axis]
    if n % found.group:
        raise DataError(f"sparsity={found} needs whole groups, and the axis has {n} values")
    zeros(stored.format)
    return found


def _shape(what: str, told: Any) -> tuple[int, ...]:
    if not isinstance(told, list) or not all(type(n) is int and 0 <= n <= _LARGEST_COUNT for n in told):
        raise DataError(f"{what}={told!r:.60} is not a list of counts")
    if len(told) > _MOST_AXES or prod(max(n, 1) for n in told) > _LARGEST_COUNT:
        raise DataError(f"{what}={told!r:.60} is larger than a tensor can be")
    return tuple(told)


def part_problems(
    name: str, stored: Stored, there: Mapping[str, StoredTensor], version: int = VERSION
) -> list[str]:
    """Return a sentence for each part of a narrow tensor that is missing or not what its format asks for."""
    problems = []
    for suffix, part in stored.parts.items():
        found = there.get(part_name(name, suffix))
        if found is None:
            problems.append(f"tensor {name!r:.200}: its part {suffix!r} is missing")
        elif (found.dtype, found.shape) != (part.dtype, part.shape):
            problems.append(
                f"tensor {name!r:.200}: its part {suffix!r} is {found.dtype} {list(found.shape)!s:.200}; "
                f"{stored.format!s:.100} of {list(stored.quantized_shape)!s:.200} takes {part.dtype} "
                f"{list(part.shape)!s:.200}"
            )
        elif version > 1 and found.crc32 is None:
            problems.append(f"tensor {name!r:.200}: its part {suffix!r} has no checksum")
    own = there.get(name)
    if version == 1:
        wanted = own is None
    else:
        wanted = own is not None and (own.dtype, own.shape) == (stored.dtype, (0,))
    if not wanted and own is not None:
        problems.append(f"tensor {name!r:.200} is there twice: narrow, and as an ordinary tensor")
    elif not wanted:
        problems.append(f"tensor {name!r:.200}: the empty tensor of its name is missing")
    return problems
