"""Where a checkpoint is written: a file for a file, a folder with the same file names for a folder."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from fewbits.errors import ArgumentError
from fewbits.files.atomic import write_text
from fewbits.files.checkpoint import index_of, read_index
from fewbits.files.safetensors_header import Header


@dataclass(frozen=True)
class Destination:
    """The files to write, and their index if the source has one."""

    path: Path  # the file or the folder, symbolic links resolved
    files: dict[Path, Path]  # source file -> destination file
    index: Path | None  # index of the source

    def refuse_others(self, names: Iterable[str]) -> None:
        """Raise ArgumentError if files beside the tensors are there, and not from an earlier run."""
        if self.path in self.files.values() or any(file.exists() for file in self.files.values()):
            return
        others = [name for name in names if (self.path / name).exists()]
        if others:
            raise ArgumentError(
                f"{self.path} holds {others[0]!r:.200}, which is not of this checkpoint; give an empty folder"
            )

    @contextmanager
    def made(self) -> Iterator[None]:
        """Create the folder of a sharded checkpoint; remove it after a failure if it is empty."""
        make = self.path not in self.files.values() and not self.path.exists()
        if make:
            self.path.mkdir()
        try:
            yield
        except BaseException:
            if make:
                with suppress(OSError):
                    self.path.rmdir()
            raise

    def write_index(self, headers: dict[Path, Header]) -> None:
        """Write the index that says which file holds which tensor, if the source has one."""
        if self.index is None:
            return
        places = {name: file.name for file, header in headers.items() for name in header.starts}
        given = read_index(self.index).get("metadata")
        size = sum(header.size - min(header.starts.values()) for header in headers.values())
        metadata = (given if isinstance(given, dict) else {}) | {"total_size": size}
        document = {"metadata": metadata, "weight_map": dict(sorted(places.items()))}
        write_text(self.path / self.index.name, json.dumps(document, indent=2) + "\n")


def plan_destination(
    source: str | os.PathLike[str], given: str | os.PathLike[str], files: Iterable[Path]
) -> Destination:
    """Plan the destination of each file of a checkpoint.

    Args:
        source: a checkpoint that was read.
        given: the destination path.
        files: the files of the source.

    Raises:
        ArgumentError: the destination is the source, of the wrong kind, in a missing folder, or a folder with
            other tensors.
    """
    origin, named, target = Path(source), Path(given), Path(os.path.realpath(given))
    index = index_of(origin)
    if not target.parent.is_dir():
        raise ArgumentError(
            f"cannot write {given}: the folder {target.parent} does not exist; create it first"
        )
    if not origin.is_dir() and index is None:
        return Destination(target, dict.fromkeys([origin, *files], _file(origin, named, target)), None)
    folder = origin if origin.is_dir() else origin.parent
    if target.is_file() or named.suffix.lower() == ".safetensors":
        raise ArgumentError(f"{source} is a folder of files, and {given} is one file; give a folder")
    if target == Path(os.path.realpath(folder)):
        raise ArgumentError(f"{given} is the source itself; give another folder, as it is not written over")
    places = {file: target / file.name for file in files}
    _refuse_strangers(target, {*places.values(), target / index.name} if index else {*places.values()})
    return Destination(target, places, index)


def plan_single_file(given: str | os.PathLike[str], files: Iterable[Path], suffix: str) -> Destination:
    """Plan one file for all files of a checkpoint.

    Args:
        given: the destination path.
        files: the files of the source.
        suffix: with which its name has to end.

    Raises:
        ArgumentError: the destination has another name, is of the wrong kind, or in a missing folder.
    """
    target = Path(os.path.realpath(given))
    if Path(given).suffix.lower() != suffix:  # by which it is read again, whatever a link's target is called
        raise ArgumentError(f"{given} is no {suffix} file by its name; give one, as this layout is one file")
    if target.exists() and not target.is_file():
        raise ArgumentError(f"{given} is a folder or a device; give the name of a {suffix} file")
    if not target.parent.is_dir():
        raise ArgumentError(
            f"cannot write {given}: the folder {target.parent} does not exist; create it first"
        )
    return Destination(target, dict.fromkeys(files, target), None)


def _file(origin: Path, given: Path, target: Path) -> Path:
    if target == Path(os.path.realpath(origin)) or (target.exists() and target.samefile(origin)):
        raise ArgumentError(f"{given} is the source itself; give another file, as it is not written over")
    if target.exists() and not target.is_file():
        raise ArgumentError(f"{given} is a folder or a device; give the name of a .safetensors file")
    if given.suffix.lower() != ".safetensors":
        raise ArgumentError(f"{given} is no .safetensors file by its name; give one, as {origin} is a file")
    return target


def _refuse_strangers(folder: Path, own: set[Path]) -> None:
    """Raise ArgumentError for a folder with .safetensors files of another checkpoint."""
    present = [*folder.glob("*.safetensors"), *folder.glob("*.safetensors.index.json")]
    strangers = sorted(path.name for path in present if path not in own)
    if strangers:
        raise ArgumentError(
            f"{folder} holds {strangers[0]!r:.200}, which is not of this checkpoint; give an empty folder"
        )
