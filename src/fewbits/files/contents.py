"""What a checkpoint holds as its user names it: ordinary tensors, and narrow ones in place of their parts."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from fewbits.errors import ArgumentError, DataError
from fewbits.files.checkpoint import StoredTensor, counting_order, metadata, read_checkpoint
from fewbits.files.stored import KEY, Metadata, Stored, part_name, part_problems, read_metadata


@dataclass(frozen=True)
class Narrow:
    """One narrow tensor of a checkpoint."""

    name: str
    stored: Stored
    parts: Mapping[str, StoredTensor]  # by the ends of their names
    file: Path

    @property
    def stored_bytes(self) -> int:
        """Bytes of all parts."""
        return sum(part.stored_bytes for part in self.parts.values())


Held = StoredTensor | Narrow


@dataclass(frozen=True)
class Contents:
    """A checkpoint, and what is wrong with its narrow tensors."""

    tensors: tuple[Held, ...]  # layer 2 before layer 10
    problems: tuple[str, ...]

    @property
    def narrow(self) -> tuple[Narrow, ...]:
        """The narrow tensors."""
        return tuple(t for t in self.tensors if isinstance(t, Narrow))


def read_contents(path: str | os.PathLike[str]) -> Contents:
    """List a checkpoint; a narrow tensor with something wrong becomes a problem and is left out.

    Args:
        path: as for :func:`fewbits.files.checkpoint.read_checkpoint`.

    Raises:
        DataError: the checkpoint itself cannot be read.
    """
    by_file: dict[Path, dict[str, StoredTensor]] = {}
    for tensor in read_checkpoint(path):
        by_file.setdefault(tensor.file, {})[tensor.name] = tensor
    tensors: list[Held] = []
    problems: list[str] = []
    for file, there in by_file.items():
        text = metadata(file).get(KEY)
        told = Metadata({}, {}, []) if text is None else read_metadata(text)
        wrong = list(told.problems)
        there |= {n: replace(t, crc32=told.checksums[n]) for n, t in there.items() if n in told.checksums}
        claimed: set[str] = set()
        for name, about in told.tensors.items():
            of_tensor = part_problems(name, about, there, told.version)
            names = {suffix: part_name(name, suffix) for suffix in about.parts}
            claimed.update(names.values(), [name] if told.version > 1 else [])
            if not of_tensor:
                parts = {suffix: there[whole] for suffix, whole in names.items()}
                tensors.append(Narrow(name, about, parts, file))
            wrong += of_tensor
        lost = [name for name in told.checksums if name not in there and name not in claimed]
        wrong += [f"tensor {name!r:.200} is missing, and the file has its checksum" for name in lost]
        tensors += [tensor for name, tensor in there.items() if name not in claimed]
        problems += [f"{file}: {sentence}" for sentence in wrong]
    times = Counter(t.name for t in tensors)
    problems += [f"{path}: tensor {name!r:.200} is there {n} times" for name, n in times.items() if n > 1]
    return Contents(tuple(sorted(tensors, key=lambda t: counting_order(t.name))), tuple(problems))


def sound_contents(path: str | os.PathLike[str]) -> Contents:
    """List a checkpoint in which nothing is wrong.

    Raises:
        DataError: it cannot be read, or its narrow tensors are not what its metadata says.
    """
    contents = read_contents(path)
    if contents.problems:
        more = len(contents.problems) - 1
        rest = f" (and {more} more; `fewbits inspect` lists them)" if more else ""
        raise DataError(contents.problems[0] + rest)
    return contents


def ordinary_tensors(path: str | os.PathLike[str]) -> tuple[StoredTensor, ...]:
    """List a checkpoint none of whose tensors is narrow.

    Raises:
        DataError: it cannot be read.
        ArgumentError: it holds narrow tensors.
    """
    contents = sound_contents(path)
    for tensor in contents.narrow:
        raise ArgumentError(
            f"{path} was cast already: it holds {tensor.name!r:.200} in {tensor.stored.format!s:.100};"
            " rounding twice loses more: give the original, or restore it first with"
            " `fewbits cast SOURCE DESTINATION --back`"
        )
    return tuple(tensor for tensor in contents.tensors if isinstance(tensor, StoredTensor))
