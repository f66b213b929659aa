"""Markers for path parameters: what a command reads, and which kinds of files it writes."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass

_LONGEST_HEADER = 100_000_000  # bytes, of a safetensors file; the library refuses longer ones


@dataclass(frozen=True)
class Kind:
    """A kind of output, and how a file of it begins."""

    name: str
    begins: Callable[[bytes], bool]
    is_own: bool = False  # nobody but fewbits writes files that begin so
    file: bool = True  # a file may be written
    folder: bool = False  # a folder may be written
    stdout: bool = False  # text, which "-" sends to the standard output


@dataclass(frozen=True)
class Reads:
    """Marks a parameter that names a file, a folder or an index; a text that is no path is passed over."""

    below: bool = False  # of a folder, the files in folders below it too
    several: bool = False  # a list with commas, whose items may be paths


@dataclass(frozen=True)
class Writes:
    """Marks a parameter that names an output."""

    kind: Kind


def _matches(pattern: bytes) -> Callable[[bytes], bool]:
    return lambda head: re.match(pattern, head, re.IGNORECASE | re.DOTALL) is not None


def _holds_tensors(head: bytes) -> bool:
    return _is_safetensors(head) or head.startswith(b"GGUF") or _is_onnx(head)


def _is_onnx(head: bytes) -> bool:
    """Return whether a file begins as a ModelProto does: its version of the IR, and another field."""
    return re.match(rb"\x08[\x01-\x40][\x12\x1a\x22\x28\x32\x3a\x42\x72]", head) is not None


def _is_safetensors(head: bytes) -> bool:
    return head[8:9] == b"{" and int.from_bytes(head[:8], "little") <= _LONGEST_HEADER


# A configuration or an index is JSON too, so only what looks like one of our reports is replaced.
JSON = Kind(
    "a JSON report of fewbits",
    _matches(rb'\s*(\{\s*"kind":\s*"\w+",\s*"schema":|\[\s*\{\s*"name":|\{\s*"facts":)'),
    is_own=True,
    stdout=True,
)
PAGE = Kind(
    "a page of fewbits",
    _matches(rb"\s*<!doctype html>.{0,200}Content-Security-Policy"),
    is_own=True,
    stdout=True,
)
TRACE = Kind("a trace of PyTorch's profiler", _matches(rb'\s*\{\s*"schemaVersion":'))
MATRIX = Kind("a MatrixMarket file", _matches(rb"%%MatrixMarket"))
TENSORS = Kind("a safetensors file", _is_safetensors)
CHECKPOINT = Kind("a safetensors file or a folder of them", _holds_tensors, folder=True)
FOLDER = Kind("a folder", lambda head: False, file=False, folder=True)
