"""The tensors of a checkpoint as its user names them: a narrow tensor is one entry, not its parts."""

from __future__ import annotations

import os
from collections import Counter
from dataclasses import dataclass, replace
from pathlib import Path

from fewbits.errors import ArgumentError, DataError
from fewbits.files.byte_layout import part_name
from fewbits.files.checkpoint import StoredTensor, counting_order, metadata, read_checkpoint
from fewbits.files.layouts import LAYOUTS, gguf, onnx
from fewbits.files.layouts.layout import Reading
from fewbits.files.model_folder import model_folder
from fewbits.files.narrow_metadata import KEY, NarrowMetadata, part_problems, read_metadata
from fewbits.files.narrow_tensor import AnyStoredTensor, StoredNarrowTensor

_SCALES_BESIDE = ("_scale_inv", "_scale")  # behind the name of a weight


@dataclass(frozen=True)
class Contents:
    """The tensors of a checkpoint, and the problems found in narrow ones."""

    tensors: tuple[AnyStoredTensor, ...]  # in natural order
    problems: tuple[str, ...]
    layout: str | None = None  # of another program, by its name; None: that of docs/layout.md, or ordinary

    @property
    def narrow(self) -> tuple[StoredNarrowTensor, ...]:
        """The narrow tensors."""
        return tuple(t for t in self.tensors if isinstance(t, StoredNarrowTensor))


def read_contents(path: str | os.PathLike[str]) -> Contents:
    """List a checkpoint; an invalid narrow tensor is left out and reported as a problem.

    Args:
        path: a ``.safetensors`` file, an index of several, or a folder of them; a GGUF file or an ONNX model.

    Raises:
        DataError: the checkpoint itself cannot be read.
    """
    for kind in (gguf, onnx):
        if kind.is_one(Path(path)):
            ordinary, reading = kind.read_file(Path(path))
            return _listed(path, [*reading.narrow, *ordinary], reading, kind.NAME)
    by_file: dict[Path, dict[str, StoredTensor]] = {}
    for tensor in read_checkpoint(path):
        by_file.setdefault(tensor.file, {})[tensor.name] = tensor
    tensors: list[AnyStoredTensor] = []
    problems: list[str] = []
    for file, there in by_file.items():
        text = metadata(file).get(KEY)
        narrow = NarrowMetadata({}, {}, []) if text is None else read_metadata(text)
        wrong, checksums = list(narrow.problems), narrow.checksums
        there |= {n: replace(t, crc32=checksums[n]) for n, t in there.items() if n in checksums}
        claimed: set[str] = set()
        for name, layout in narrow.tensors.items():
            of_tensor = part_problems(name, layout, there, narrow.version)
            names = {suffix: part_name(name, suffix) for suffix in layout.parts}
            claimed.update(names.values(), [name] if narrow.version > 1 else [])
            if not of_tensor:
                parts = {suffix: there[full_name] for suffix, full_name in names.items()}
                tensors.append(StoredNarrowTensor(name, layout, parts, file))
            wrong += of_tensor
        lost = [name for name in checksums if name not in there and name not in claimed]
        wrong += [f"tensor {name!r:.200} is missing, and the file has its checksum" for name in lost]
        tensors += [tensor for name, tensor in there.items() if name not in claimed]
        problems += [f"{file}: {sentence}" for sentence in wrong]
    found = (
        None
        if problems or any(isinstance(t, StoredNarrowTensor) for t in tensors)
        else _foreign(path, tensors)
    )
    if found is not None:
        return found
    times = Counter(t.name for t in tensors)
    problems += [f"{path}: tensor {name!r:.200} is there {n} times" for name, n in times.items() if n > 1]
    return Contents(tuple(sorted(tensors, key=lambda t: counting_order(t.name))), tuple(problems))


def _foreign(path: str | os.PathLike[str], tensors: list[AnyStoredTensor]) -> Contents | None:
    """Return the contents of a folder in the layout of another program; None if it is in none."""
    there = {t.name: t for t in tensors if isinstance(t, StoredTensor)}
    if not any("scale" in name for name in there):  # which all of them have: no other config is read
        return None
    folder = model_folder(path)
    for name, layout in LAYOUTS.items():
        reading = layout.read(folder, there)
        if reading is not None:
            ordinary = [t for t in tensors if t.name not in reading.claimed]
            return _listed(path, [*reading.narrow, *ordinary], reading, name)
    return None


def _listed(
    path: str | os.PathLike[str],
    tensors: list[AnyStoredTensor],
    reading: Reading,
    layout: str,
) -> Contents:
    listed = sorted(tensors, key=lambda t: counting_order(t.name))
    problems = tuple(f"{path}: {sentence}" for sentence in reading.problems)
    return Contents(tuple(listed), problems, layout)


def sound_contents(path: str | os.PathLike[str]) -> Contents:
    """List a checkpoint; raise if anything is wrong with it.

    Raises:
        DataError: it cannot be read, or its narrow tensors do not match its metadata.
    """
    contents = read_contents(path)
    if contents.problems:
        more = len(contents.problems) - 1
        rest = f" (and {more} more; `fewbits inspect` lists them)" if more else ""
        raise DataError(contents.problems[0] + rest)
    return contents


def ordinary_tensors(path: str | os.PathLike[str]) -> tuple[StoredTensor, ...]:
    """List a checkpoint that has no narrow tensors.

    Raises:
        DataError: it cannot be read.
        ArgumentError: it holds narrow tensors, its folder says that its weights are codes of a method that is
            not read, or scales lie beside numbers of 8 bits.
    """
    contents = sound_contents(path)
    for tensor in contents.narrow:
        raise ArgumentError(
            f"{path} was cast already: it holds {tensor.name!r:.200} in {tensor.layout.format!s:.100};"
            " rounding twice loses more: give the original, or restore it first with"
            " `fewbits cast SOURCE DESTINATION --back`"
        )
    if contents.layout not in (gguf.NAME, onnx.NAME):  # a file of these says itself what it holds
        refuse_codes(path)
        _refuse_scaled(path, contents)
    return tuple(tensor for tensor in contents.tensors if isinstance(tensor, StoredTensor))


def _refuse_scaled(path: str | os.PathLike[str], contents: Contents) -> None:
    """Raise ArgumentError if scales of a tensor of 8-bit numbers lie beside it, as those of DeepSeek do."""
    names = {tensor.name for tensor in contents.tensors}
    for tensor in contents.tensors:
        scales = [tensor.name + end for end in _SCALES_BESIDE if tensor.name + end in names]
        if scales and isinstance(tensor, StoredTensor) and tensor.dtype.startswith("F8_"):
            raise ArgumentError(
                f"{path}: {tensor.name!r:.200} holds numbers of 8 bits ({tensor.dtype}) whose scales are in"
                f" {scales[0]!r:.200}, and would be taken for values; give the model that it was made from"
            )


def refuse_codes(path: str | os.PathLike[str]) -> None:
    """Raise ArgumentError if weights are, by the words of their folder, codes of another tool and not values.

    Raises:
        DataError: config.json cannot be read.
    """
    folder = model_folder(path)
    words = None if folder is None else folder.foreign_words()
    if words is not None:
        method, place = words
        raise ArgumentError(
            f"{place} says that the weights are quantized ({method:.60}), and their codes would be taken for"
            " values; give the model that it was made from, or, if they are values, take these words out"
        )
