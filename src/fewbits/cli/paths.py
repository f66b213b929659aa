"""Checks that no output overwrites an input, another output, or a file of another kind.

Every path parameter is marked with `Reads` or `Writes` in its annotation, and `guarded` compares all of them
before the command begins.
"""

from __future__ import annotations

import inspect
import json
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import wraps
from pathlib import Path
from typing import ParamSpec, TypeVar, get_type_hints

import typer
from rich.console import Console

from fewbits.cli.arguments import read_list
from fewbits.cli.flags import parameter_flags
from fewbits.cli.kinds import FOLDER, PAGE, TENSORS, Kind, Reads, Writes
from fewbits.errors import ArgumentError, DataError
from fewbits.files.atomic import write_text

P = ParamSpec("P")
R = TypeVar("R")
STDOUT = Path("-")
_HEAD = 512  # bytes that tell the kind of a file


@dataclass(frozen=True)
class _Input:
    """A path to be read, and the parameter that it was given for."""

    name: str  # with the parameter: "--task texts"
    path: Path
    below: bool

    @property
    def files(self) -> list[Path]:
        """The files that the path stands for: itself, those of a folder, the shards of an index."""
        if not self.path.is_dir():
            files = [self.path, *(_shards(self.path) if self.path.suffix == ".json" else ())]
        elif self.below:
            files = _files_below(self.path)
        else:
            files = list(self.path.iterdir())
        return [file for file in files if file.is_file()]


@dataclass(frozen=True)
class _Output:
    """A path to be written, and the parameter that it was given for."""

    name: str  # with the parameter: "--json r.json"
    path: Path
    kind: Kind

    @property
    def is_own(self) -> bool:
        """Whether it is a file that fewbits wrote, beyond doubt."""
        real = _real(self.path)
        return self.kind.is_own and real.is_file() and self.kind.begins(_head(real))

    @property
    def files(self) -> list[Path]:
        """The files that are there already."""
        if self.path.is_dir():
            return [file for file in _files_below(self.path) if file.is_file()]
        return [self.path] if self.path.is_file() else []


def guarded(command: Callable[P, R]) -> Callable[P, R]:
    """Return the command with all its paths checked before it begins.

    Raises, when called:
        ArgumentError: an output is an input or would overwrite a part of one, two outputs are one, or an
            output cannot be written or is there and of another kind.
        DataError: an input is not there.
    """
    marks, flags = paths_of(command), parameter_flags(command)

    @wraps(command)
    def checked(*args: P.args, **kwargs: P.kwargs) -> R:
        given = inspect.signature(command).bind(*args, **kwargs)
        given.apply_defaults()
        inputs: list[_Input] = []
        outputs: list[_Output] = []
        missing: list[str] = []
        for parameter, mark in marks.items():
            for value in _values(given.arguments[parameter], mark):
                name = f"{flags[parameter]} {value}"
                if isinstance(mark, Writes):
                    outputs.append(_Output(name, Path(value), mark.kind))
                elif _exists(value):
                    inputs.append(_Input(name, Path(value), mark.below))
                elif isinstance(value, Path):
                    missing.append(name)
        for i, output in enumerate(outputs):
            for other in outputs[:i]:
                _refuse_shared(output, other)
            _check(output, inputs)
        _refuse_missing(missing)
        if any(output.kind is PAGE for output in outputs):
            from fewbits.report import check_plots

            check_plots()  # a missing library is named before the work, not after it
        return command(*args, **kwargs)

    return checked


def paths_of(command: Callable[..., object]) -> dict[str, Reads | Writes]:
    """Return the parameters of a command that are marked as paths."""
    hints = get_type_hints(command, include_extras=True)
    marks = {name: getattr(hint, "__metadata__", ()) for name, hint in hints.items()}
    return {name: m for name, among in marks.items() for m in among if isinstance(m, Reads | Writes)}


def _values(given: object, mark: Reads | Writes) -> list[str | Path]:
    if not isinstance(given, str | Path):
        return []
    is_list = isinstance(mark, Reads) and mark.several and isinstance(given, str)
    return [*read_list(str(given))] if is_list else [given]


def _exists(given: str | Path) -> bool:
    try:
        return Path(given).exists()
    except (OSError, ValueError):  # a text too long for a name, or with a null byte
        return False


def _refuse_missing(missing: list[str]) -> None:
    """Refuse inputs that are not there before anything large is loaded."""
    if missing:
        raise DataError(f"{missing[0]} does not exist; expected a file or a folder to read: check the path")


def _refuse_shared(output: _Output, other: _Output) -> None:
    first, second = _real(output.path), _real(other.path)
    if STDOUT in (output.path, other.path):
        shared = output.path == other.path
    else:
        shared = any(a == b or _same(a, b) for a in _places(first) for b in _places(second))
        shared |= output.kind.folder and first in second.parents
        shared |= other.kind.folder and second in first.parents
    if shared:
        raise ArgumentError(
            f"{other.name} and {output.name} would overwrite each other; give each a place of its own"
        )


def _check(output: _Output, inputs: list[_Input]) -> None:
    if output.path == STDOUT:
        if not output.kind.stdout:
            raise ArgumentError(
                f"{output.name}: {output.kind.name} does not go to standard output; give a path"
            )
        return
    try:
        for source in inputs:
            _refuse_overwriting(output, source)
        _refuse_another_kind(output)
        _refuse_unwritable(output)
    except OSError as error:  # a name that is too long, or a folder that nobody may look into
        raise ArgumentError(f"{output.name:.200}: {error.strerror}; give another path") from None


def _places(path: Path) -> tuple[Path, ...]:
    """Return the files that a path stands for: an ONNX model may have its values in one beside it."""
    return (path, path.with_name(path.name + ".data")) if path.suffix.lower() == ".onnx" else (path,)


def _refuse_overwriting(output: _Output, source: _Input) -> None:
    target, origin = _real(output.path), _real(source.path)
    if any(a == b or _same(a, b) for a in _places(target) for b in _places(origin)):
        raise ArgumentError(f"{output.name} is {source.name}, which is read; give another name to write to")
    if output.kind.folder and target in origin.parents:
        raise ArgumentError(f"{output.name} holds {source.name}, which is read; give a folder of its own")
    if origin in target.parents and output.is_own:
        return  # a report of an earlier run, beside the files that it is about
    if origin in target.parents and (output.kind is TENSORS or target.is_file()):
        raise ArgumentError(f"{output.name} lies in {source.name}, which is read; write it elsewhere")
    there = {_identity(file) for file in output.files}
    shared = next((file for file in source.files if _identity(file) in there), None) if there else None
    if shared is not None:
        raise ArgumentError(f"{output.name} leads to {shared}, which is read; give another name to write to")


def check_kind(name: str, path: Path, kind: Kind) -> None:
    """Check an output whose name is no parameter's, as `guarded` checks the others.

    Args:
        name: the subject of the error.
        path: where it is written.
        kind: of what is written.

    Raises:
        ArgumentError: something of another kind is there.
    """
    _refuse_another_kind(_Output(name, path, kind))


def _refuse_another_kind(output: _Output) -> None:
    target, kind = _real(output.path), output.kind
    if target.is_dir():
        if not kind.folder:
            raise ArgumentError(f"{output.name} is a folder; give the name of a file to write")
    elif target.is_file():
        if not kind.file:
            raise ArgumentError(f"{output.name} is a file; give the name of a folder")
        if target.stat().st_size and not kind.begins(_head(target)):
            raise ArgumentError(f"{output.name} is there and not {kind.name}; give another name or remove it")
    elif target.exists() or output.path.exists():  # a pipe behind /dev/stdout has no path of its own
        raise ArgumentError(f"{output.name} is a device; give a file, or - where a text is written")


def _refuse_unwritable(output: _Output) -> None:
    """Refuse what could not be written, before hours of work go into it."""
    target = _real(output.path)
    folder = target.parent
    if output.kind is FOLDER:  # made with its parents
        folder = next(place for place in (target, *target.parents) if place.exists())
        if not folder.is_dir():
            raise ArgumentError(f"{output.name}: {folder} is a file; give a place below a folder")
    elif not folder.is_dir():
        raise ArgumentError(f"{output.name}: the folder {folder} does not exist; create it first")
    if not os.access(folder, os.W_OK):
        raise ArgumentError(f"{output.name}: nothing can be written to {folder}; give another place")


def _real(path: Path) -> Path:
    return Path(os.path.realpath(path))


def _same(path: Path, other: Path) -> bool:
    """Return whether two paths lead to the same file, through any links."""
    try:
        return path.samefile(other)
    except OSError:
        return False


def _identity(file: Path) -> tuple[int, int]:
    status = file.stat()
    return status.st_dev, status.st_ino


def _files_below(folder: Path) -> list[Path]:
    return [Path(place) / name for place, _, names in os.walk(folder) for name in names]


def _shards(index: Path) -> Iterator[Path]:
    try:
        places = json.loads(index.read_bytes())["weight_map"].values()
        yield from (index.parent / name for name in dict.fromkeys(places))
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return  # no index, and whoever reads it says so


def _head(file: Path) -> bytes:
    with file.open("rb") as opened:
        return opened.read(_HEAD)


def tables_console(*reports: Path | None) -> Console:
    """Return where tables are printed: the standard output, unless a report goes there."""
    return Console(stderr=STDOUT in reports)


def write_report(path: Path | None, text: Callable[[], str]) -> None:
    """Write a report to its file, or to the standard output for ``-``; None writes nothing."""
    if path == STDOUT:
        typer.echo(text().encode("utf-8"), nl=False)
    elif path is not None:
        write_text(path, text())
        typer.echo(f"wrote {path}", err=True)
