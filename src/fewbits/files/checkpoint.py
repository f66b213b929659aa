"""Read safetensors checkpoints: list the tensors, and stream values in pieces of bounded size.

The safetensors library checks every length and offset of a header. This module checks the rest: file names,
indexes of sharded checkpoints, duplicate names, and files of other kinds.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from functools import partial
from io import BufferedReader
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from fewbits.errors import DataError
from fewbits.files.json_objects import unique_keys
from fewbits.files.pieces import pieces
from fewbits.files.safetensors_header import METADATA, width
from fewbits.versions import release

if TYPE_CHECKING:
    import torch
    from safetensors import safe_open

CHUNK_VALUES = 1 << 20  # values in memory at once, 4 MiB as float32

FLOATS = {  # readable floating-point dtypes: safetensors name -> torch name
    "F64": "float64",
    "F32": "float32",
    "F16": "float16",
    "BF16": "bfloat16",
    "F8_E4M3": "float8_e4m3fn",
    "F8_E5M2": "float8_e5m2",
    "F8_E4M3FNUZ": "float8_e4m3fnuz",
    "F8_E5M2FNUZ": "float8_e5m2fnuz",
}
_PICKLES = (".bin", ".pt", ".pth", ".ckpt", ".pkl", ".pickle")
INDEX = ".safetensors.index.json"
_LARGEST_INDEX_BYTES = 100_000_000  # the limit of the safetensors library for a header


@dataclass(frozen=True)
class StoredTensor:
    """One tensor of a checkpoint, as its file describes it."""

    name: str
    shape: tuple[int, ...]
    dtype: str  # in the spelling of safetensors: BF16, F8_E4M3, I64
    file: Path
    start: int = field(default=-1, compare=False)  # byte offset in the file
    crc32: str | None = field(default=None, compare=False)  # checksum recorded in the file, if there is one

    @property
    def count(self) -> int:
        """Number of values."""
        return prod(self.shape)

    @property
    def stored_bytes(self) -> int:
        """Bytes of the values in the file."""
        return -(-self.count * width(self.dtype) // 8)

    @property
    def is_float(self) -> bool:
        """Whether the values are real floating-point numbers that this module can read."""
        return self.dtype in FLOATS

    def read(self, file: BufferedReader, at: int, size: int) -> bytearray:
        """Return ``size`` bytes from byte ``at`` of the tensor on; ``file`` is its open file.

        Raises:
            DataError: the file became shorter after it was listed.
        """
        octets = bytearray(size)
        file.seek(self.start + at)
        if file.readinto(octets) != size:
            raise DataError(f"{self.file} was cut short while it was read; fetch or write it again")
        return octets


def read_checkpoint(path: str | os.PathLike[str]) -> tuple[StoredTensor, ...]:
    """List the tensors of a checkpoint in natural order: layer 2 before layer 10.

    Args:
        path: a ``.safetensors`` file, a ``.safetensors.index.json`` file, or a folder that holds one of them;
            in a folder with several ``.safetensors`` files and no index, all of them are read. Of files
            that an index names all tensors are read.

    Raises:
        DataError: the file is missing, damaged or of another kind, or an index does not match its files.
    """
    given = Path(path)
    if given.is_dir():
        index = index_of(given)
        tensors = _indexed(index) if index else _listed(*_in_folder(given))
    elif not given.is_file():
        raise DataError(f"{given} is no file and no folder; expected a .safetensors file or a folder of them")
    else:
        tensors = _indexed(given) if index_of(given) else _listed(given)
    if not tensors:
        raise DataError(f"{given} holds no tensors; expected a checkpoint with at least one")
    return tuple(sorted(tensors, key=lambda t: counting_order(t.name)))


def is_without_tensors(path: str | os.PathLike[str]) -> bool:
    """Return whether a path is a sound ``.safetensors`` file without tensors, as the state of plain SGD is.

    Raises:
        DataError: it is such a file by its name, and damaged.
    """
    file = Path(path)
    return file.is_file() and file.suffix.lower() == ".safetensors" and not opened(file).keys()


def index_of(given: Path) -> Path | None:
    """Return the index of a sharded checkpoint: ``given`` itself or the one in that folder, or None.

    Raises:
        DataError: the folder holds several.
    """
    if not given.is_dir():
        return given if given.name.endswith(INDEX) else None
    indexes = sorted(given.glob("*" + INDEX))
    if len(indexes) > 1:
        raise DataError(
            f"{given} holds {len(indexes)} indexes; give one: {', '.join(i.name for i in indexes)}"
        )
    return indexes[0] if indexes else None


def chunks(
    tensor: StoredTensor, row: int, *, multiple: int = 1, values: int = CHUNK_VALUES
) -> Iterator[NDArray[Any]]:
    """Yield the values of a floating-point tensor in pieces of rows; only one piece is in memory.

    Args:
        tensor: from :func:`read_checkpoint`; ``tensor.is_float`` holds.
        row: values in a row; must divide ``tensor.count``, and need not match the tensor's shape.
        multiple: a row longer than a piece is cut at multiples of this many values.
        values: most values in a piece; at least ``multiple``.

    Yields:
        (rows, row) if whole rows fit, else (1, part of a row), in C order and as :mod:`fewbits.kernels` takes
        it: F64, F32 and F16 as they are, BF16 as its bits in uint16, other types as float32.

    Raises:
        DataError: the file was damaged after it was listed.
    """
    value_bytes = tensor.stored_bytes // max(tensor.count, 1)
    if tensor.file.suffix.lower() == ".safetensors":
        opened(tensor.file)
    # Read instead of mapped, because mapped pages count as memory of the process until they are released.
    with tensor.file.open("rb") as file:
        for at, size in pieces(tensor.count, row, most=values, multiple=multiple):
            values_read = _floats(tensor.read(file, at * value_bytes, size * value_bytes), tensor.dtype)
            yield values_read.reshape(-1, row) if row <= values else values_read.reshape(1, -1)


def slices(tensor: StoredTensor, starts: Iterable[int], length: int) -> Iterator[NDArray[Any]]:
    """Yield ``length`` values from each of ``starts`` on, as :func:`chunks` does; only they are read.

    Args:
        tensor: from :func:`read_checkpoint`; ``tensor.is_float`` holds.
        starts: indices of values in C order.
        length: values of each slice, which ends within the tensor.

    Raises:
        DataError: the file became shorter after it was listed.
    """
    value_bytes = tensor.stored_bytes // max(tensor.count, 1)
    with tensor.file.open("rb") as file:
        for start in starts:
            yield _floats(tensor.read(file, start * value_bytes, length * value_bytes), tensor.dtype)


def raw_chunks(tensor: StoredTensor, *, size: int = 1 << 22) -> Iterator[bytearray]:
    """Yield the bytes of a tensor of any dtype as they are stored, at most ``size`` at once.

    Raises:
        DataError: the file became shorter after it was listed.
    """
    with tensor.file.open("rb") as file:
        for at in range(0, tensor.stored_bytes, size):
            yield tensor.read(file, at, min(size, tensor.stored_bytes - at))


# Stored numbers that the kernels read as they are.
_READ: dict[str, np.dtype[Any]] = {
    "F64": np.dtype("<f8"),
    "F32": np.dtype("<f4"),
    "F16": np.dtype("<f2"),
    "BF16": np.dtype("<u2"),
}


def _floats(octets: bytearray, dtype: str) -> NDArray[Any]:
    """Return stored floating-point numbers as :func:`chunks` gives them."""
    if dtype in _READ:
        stored = np.frombuffer(octets, _READ[dtype])
        return stored.astype(stored.dtype.newbyteorder("="), copy=False)
    import torch

    flat = torch.frombuffer(octets, dtype=torch.uint8) if octets else torch.empty(0, dtype=torch.uint8)
    values: NDArray[np.float32] = flat.view(torch_dtype(dtype)).float().numpy()
    return values


def torch_dtype(dtype: str) -> torch.dtype:
    """Return the torch.dtype for the safetensors name of a floating-point dtype."""
    import torch

    named: torch.dtype = getattr(torch, FLOATS[dtype])
    return named


def metadata(file: Path) -> dict[str, str]:
    """Return the metadata in the header of a ``.safetensors`` file; keys and values are text.

    Raises:
        DataError: the file is missing, damaged or of another kind.
    """
    return dict(opened(file).metadata() or {})


def opened(file: Path, framework: str = "numpy") -> safe_open:
    """Open one file with the safetensors library, which checks its header.

    ``framework`` is that of the tensors that are read from it: ``pt`` imports torch, which takes a second.

    Raises:
        DataError: the file is missing, damaged or of another kind.
    """
    from safetensors import SafetensorError, safe_open

    if file.suffix.lower() in _PICKLES:
        raise DataError(
            f"{file} is a pickle, which can run any code when it is read: fewbits never reads one; expected "
            "safetensors: where you trust the file, convert it with safetensors.torch.save_file(torch.load("
            f"{file.name!r}, weights_only=True), {file.stem + '.safetensors'!r})"
        )
    if file.suffix.lower() != ".safetensors":
        raise DataError(
            f"{file} is no .safetensors file by its name; expected one, or a folder of them: check the path"
        )
    try:
        return safe_open(file, framework=framework)
    except (SafetensorError, OSError) as error:
        reason = str(error).removeprefix("Error while deserializing header: ")
        unknown = re.search(r"unknown variant `([^`]*)`", reason)
        if unknown:
            raise DataError(
                f"{file} has a tensor of the dtype {unknown[1]!r:.60}, which is unknown to the installed"
                f" safetensors {release('safetensors')}; install a later one, or write it in another dtype"
            ) from None
        raise DataError(f"{file} cannot be read as safetensors ({reason}){_likely_cause(file)}") from None


def _likely_cause(file: Path) -> str:
    if any("\ud800" <= character <= "\udfff" for character in str(file)):
        return "; its library opens paths in UTF-8 alone: give the file, or its folder, another name"
    try:
        with file.open("rb") as source:
            start = source.read(64)
    except OSError:
        return "; check that you may read it"
    if not start:
        return "; the file is empty: fetch or write it again"
    if start.startswith(b"version https://git-lfs"):
        return "; it is a Git LFS pointer to the real file: run `git lfs pull`"
    if start.startswith((b"PK\x03\x04", b"\x80\x02", b"\x80\x04")):
        return "; it looks like a pickle by another name, which fewbits never reads: convert it"
    return "; it is damaged, cut short or no safetensors file: fetch or write it again"


def _listed(*files: Path) -> list[StoredTensor]:
    """Return the tensors of the files; raise DataError for a duplicate name."""
    tensors: dict[str, StoredTensor] = {}
    for file in files:
        with opened(file) as handle:
            starts = _starts(file)
            for name in handle.keys():  # noqa: SIM118 - the handle is no mapping
                if name in tensors:
                    raise DataError(
                        f"{name!r:.200} is in {tensors[name].file.name} and {file}; expected every name once"
                    )
                about = handle.get_slice(name)
                shape = tuple(about.get_shape())
                tensors[name] = StoredTensor(name, shape, about.get_dtype(), file, starts[name])
    return list(tensors.values())


def _starts(file: Path) -> dict[str, int]:
    """Return the byte offset of each tensor, from a header that the library has checked.

    Raises:
        DataError: the header has two entries for one tensor, of which the library would keep the last.
    """
    with file.open("rb") as source:
        size = int.from_bytes(source.read(8), "little")
        header = json.loads(source.read(size), object_pairs_hook=partial(unique_keys, str(file)))
    entries = {name: entry for name, entry in header.items() if name != METADATA}
    return {name: 8 + size + entry["data_offsets"][0] for name, entry in entries.items()}


def _in_folder(folder: Path) -> list[Path]:
    files = sorted(folder.glob("*.safetensors"))
    if files:
        return files
    pickles = sorted(p for p in folder.iterdir() if p.suffix.lower() in _PICKLES)
    if pickles:
        opened(pickles[0])  # raises the error about pickles
    raise DataError(f"{folder} holds no .safetensors file; expected a checkpoint: check the path")


def _indexed(index: Path) -> list[StoredTensor]:
    """Return all tensors of the files that an index names, also those that it does not list, as loaders do.

    Raises:
        DataError: a file is missing, or lacks a tensor that the index lists for it.
    """
    places = _weight_map(index)
    for name in sorted(set(places.values())):
        # An index is untrusted input: it may only name files in its own folder.
        if name != Path(name).name or "\\" in name or not name.endswith(".safetensors"):
            raise DataError(
                f"{index} names {name!r:.200}; expected the name of a .safetensors file in its own folder"
            )
        if not (index.parent / name).is_file():
            raise DataError(
                f"{index} names {name!r:.200}, which is missing; fetch the whole checkpoint again"
            )
    there = {t.name: t for t in _listed(*(index.parent / name for name in sorted(set(places.values()))))}
    for tensor, name in places.items():
        if tensor not in there or there[tensor].file.name != name:
            raise DataError(
                f"{index} says that {name} holds {tensor!r:.200}, and it does not; fetch the checkpoint again"
            )
    return list(there.values())


def _weight_map(index: Path) -> dict[str, str]:
    places = read_index(index).get("weight_map")
    if not isinstance(places, dict) or not all(isinstance(name, str) for name in places.values()):
        raise DataError(
            f"{index} has no weight_map from tensors to files; expected the index of a safetensors checkpoint"
        )
    return places


def read_index(index: Path) -> dict[str, object]:
    """Return the index of a sharded checkpoint as parsed JSON; {} if the document is not an object.

    Raises:
        DataError: the index is too large or not JSON.
    """
    size = index.stat().st_size
    if size > _LARGEST_INDEX_BYTES:
        raise DataError(f"{index} has {size} bytes; expected an index of at most {_LARGEST_INDEX_BYTES}")
    try:
        document = json.loads(index.read_bytes(), object_pairs_hook=partial(unique_keys, str(index)))
    except DataError:
        raise
    except (ValueError, RecursionError) as error:
        raise DataError(f"{index} is not JSON ({error}); fetch or write it again") from None
    return document if isinstance(document, dict) else {}


def counting_order(name: str) -> list[str | tuple[int, str]]:
    """Return a sort key that orders runs of digits as numbers."""
    parts = re.split(r"([0-9]+)", name)
    return [part if i % 2 == 0 else (len(part.lstrip("0")), part) for i, part in enumerate(parts)]
