"""The description of narrow tensors in a file: the text under the key ``fewbits`` of its metadata."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from math import prod
from typing import NamedTuple

from fewbits.errors import DataError, FormatError
from fewbits.files.byte_layout import TensorLayout, part_name
from fewbits.files.checkpoint import FLOATS, StoredTensor
from fewbits.files.json_objects import unique_keys
from fewbits.formats import CATALOGUE, Format, Pattern, parse
from fewbits.formats import pattern as pattern_of
from fewbits.kernels.arrays.nm import zeros

KEY = "fewbits"  # in __metadata__ of the header
VERSION = 2
READABLE = (1, 2)

_FIELDS = {"axis", "dtype", "format", "name", "shape", "sparsity", "view"}
_CHECKSUM = re.compile("[0-9a-f]{8}")
_LARGEST_COUNT = 2**63 - 1  # values of a tensor
_MOST_AXES = 64


class NarrowMetadata(NamedTuple):
    """What a file says about its narrow tensors."""

    tensors: dict[str, TensorLayout]
    checksums: dict[str, str]  # by the name in the file
    problems: list[str]  # a sentence for each problem
    version: int = VERSION


def metadata_text(tensors: Mapping[str, TensorLayout], checksums: Mapping[str, str]) -> str:
    """Return the text under the key ``fewbits``; deterministic.

    Args:
        tensors: the narrow ones, by name.
        checksums: of all tensors in the file, parts included, by name.
    """
    described = {name: _fields_of(layout) for name, layout in tensors.items()}
    document = {"crc32": dict(checksums), "tensors": described, "version": VERSION}
    return json.dumps(document, ensure_ascii=False, separators=(",", ":"), sort_keys=True)


def read_metadata(text: str) -> NarrowMetadata:
    """Read the text under the key ``fewbits``; errors are returned as problems, not raised."""
    try:
        document = json.loads(text, object_pairs_hook=partial(unique_keys, "it"))
    except (ValueError, RecursionError) as error:
        return _unreadable(f"is not JSON ({error!s:.200})")
    version = document.get("version") if isinstance(document, dict) else None
    if version not in READABLE or isinstance(version, bool | float):
        return _unreadable(f"has version {version!r:.60}; expected 1 or {VERSION}: use a newer fewbits")
    described = document.get("tensors")
    if not isinstance(described, dict):
        return _unreadable("has no object 'tensors'")
    tensors, problems = {}, []
    for name, fields in described.items():
        try:
            tensors[name] = _layout_from(fields)
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
    return NarrowMetadata(tensors, checksums, problems, version)


def _fields_of(layout: TensorLayout) -> dict[str, object]:
    fields: dict[str, object] = {
        "axis": layout.axis,
        "dtype": layout.dtype,
        "format": layout.format.grammar,
        "shape": list(layout.shape),
    }
    if layout.format.name in CATALOGUE:
        fields["name"] = layout.format.name
    if layout.view is not None:
        fields["view"] = list(layout.view)
    if layout.pattern is not None:
        fields["sparsity"] = str(layout.pattern)
    return fields


def _unreadable(reason: str) -> NarrowMetadata:
    return NarrowMetadata({}, {}, [f"the metadata {KEY!r} {reason}"])


def _layout_from(fields: object) -> TensorLayout:
    """Read the description of one tensor.

    Raises:
        DataError: a field is missing, unknown or of the wrong type, or fields contradict each other.
        FormatError: no such format or pattern.
    """
    if not isinstance(fields, dict):
        raise DataError("expected an object with format, shape, axis and dtype")
    unknown = sorted(set(fields) - _FIELDS)
    if unknown:
        raise DataError(f"the field {unknown[0]!r:.60} is unknown; use a newer fewbits")
    fmt, dtype, axis = fields.get("format"), fields.get("dtype"), fields.get("axis")
    if not isinstance(fmt, str):
        raise DataError(f"format={fmt!r:.60} is not a text")
    if not isinstance(dtype, str) or dtype not in FLOATS:
        raise DataError(f"dtype={dtype!r:.60} is not one of {', '.join(FLOATS)}")
    shape = _shape("shape", fields.get("shape"))
    view = _shape("view", fields["view"]) if "view" in fields else None
    if view is not None and prod(view) != prod(shape):
        raise DataError(f"view={list(view)} has {prod(view)} values and shape={list(shape)} {prod(shape)}")
    most = max(len(shape if view is None else view), 1)
    if isinstance(axis, bool) or not isinstance(axis, int) or not 0 <= axis < most:
        raise DataError(f"axis={axis!r:.60} is not an integer from 0 to {most - 1}")
    layout = TensorLayout(_named(parse(fmt), fields.get("name", "")), shape, axis, dtype, view)
    return replace(layout, pattern=_pattern(fields["sparsity"], layout)) if "sparsity" in fields else layout


def _named(format: Format, name: object) -> Format:
    """Return ``format`` unless ``name`` says that it is another; one of a later catalogue is not known."""
    if not isinstance(name, str):
        raise DataError(f"name={name!r:.60} is not a text")
    if name in CATALOGUE and CATALOGUE[name].format != format:
        raise DataError(f"name={name!r} is not that of its format, {format!s:.200}: one of them is wrong")
    return format


def _pattern(text: object, layout: TensorLayout) -> Pattern:
    if not isinstance(text, str):
        raise DataError(f"sparsity={text!r:.60} is not a text")
    pattern = pattern_of(text)
    if str(pattern) != text:
        raise DataError(f"sparsity={text!r:.60} is written {pattern}")
    n = (layout.quantized_shape or (1,))[layout.axis]
    if n % pattern.group:
        raise DataError(f"sparsity={pattern} needs whole groups, and the axis has {n} values")
    zeros(layout.format)
    return pattern


def _shape(field: str, value: object) -> tuple[int, ...]:
    if not isinstance(value, list) or not all(type(n) is int and 0 <= n <= _LARGEST_COUNT for n in value):
        raise DataError(f"{field}={value!r:.60} is not a list of counts")
    if len(value) > _MOST_AXES or prod(max(n, 1) for n in value) > _LARGEST_COUNT:
        raise DataError(f"{field}={value!r:.60} is larger than a tensor can be")
    return tuple(value)


def part_problems(
    name: str, layout: TensorLayout, there: Mapping[str, StoredTensor], version: int = VERSION
) -> list[str]:
    """Return a sentence for each part of a narrow tensor that is missing or does not match its format."""
    problems = []
    for suffix, part in layout.parts.items():
        entry = there.get(part_name(name, suffix))
        if entry is None:
            problems.append(f"tensor {name!r:.200}: its part {suffix!r} is missing")
        elif (entry.dtype, entry.shape) != (part.dtype, part.shape):
            problems.append(
                f"tensor {name!r:.200}: its part {suffix!r} is {entry.dtype} {list(entry.shape)!s:.200}; "
                f"{layout.format!s:.100} of {list(layout.quantized_shape)!s:.200} takes {part.dtype} "
                f"{list(part.shape)!s:.200}"
            )
        elif version > 1 and entry.crc32 is None:
            problems.append(f"tensor {name!r:.200}: its part {suffix!r} has no checksum")
    own = there.get(name)
    if version == 1:
        wanted = own is None
    else:
        wanted = own is not None and (own.dtype, own.shape) == (layout.dtype, (0,))
    if not wanted and own is not None:
        problems.append(f"tensor {name!r:.200} is there twice: narrow, and as an ordinary tensor")
    elif not wanted:
        problems.append(f"tensor {name!r:.200}: the empty tensor of its name is missing")
    return problems
