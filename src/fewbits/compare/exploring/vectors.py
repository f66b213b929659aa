"""The vectors that formats are measured on: drawn from a distribution, or pieces of the user's tensors."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from fewbits.compare.whole_numbers import check_whole
from fewbits.errors import ArgumentError, DataError
from fewbits.files.checkpoint import StoredTensor, slices
from fewbits.files.contents import ordinary_tensors
from fewbits.files.matrix_view import matrix_shape
from fewbits.files.selection import check_patterns, is_selected
from fewbits.kernels.bits.reals import widened
from fewbits.records import ExploredData

_SHOWN = 3  # names of tensors that are left out
LENGTH = 256  # values of a vector: two blocks of the largest size in the space

Singles = NDArray[np.float32]
Draw = Callable[[np.random.Generator, int], NDArray[np.float64]]


def _variance(random: np.random.Generator, count: int) -> NDArray[np.float64]:
    variances = np.abs(random.standard_normal((count, 1)))
    return random.standard_normal((count, LENGTH)) * np.sqrt(variances)


def _lognormal(random: np.random.Generator, count: int) -> NDArray[np.float64]:
    return random.standard_normal((count, LENGTH)) * np.exp(random.standard_normal((count, LENGTH)))


DISTRIBUTIONS: dict[str, tuple[str, Draw]] = {
    "variance": ("normal, the variance of each vector drawn as |N(0, 1)|", _variance),
    "gaussian": ("normal, of variance one", lambda r, n: r.standard_normal((n, LENGTH))),
    "laplace": ("Laplace's, of scale one", lambda r, n: r.laplace(size=(n, LENGTH))),
    "lognormal": ("normal times exp(N(0, 1)), drawn anew for each value", _lognormal),
}


@dataclass(frozen=True)
class Vectors:
    """Vectors in random order, and what they are."""

    values: Singles  # (vectors, length), finite, not all zero
    data: ExploredData


def vectors_of(
    data: str | os.PathLike[str],
    count: int,
    seed: int,
    scale_rule: str,
    include: Sequence[str] = (),
    exclude: Sequence[str] = (),
) -> Vectors:
    """Return the vectors of a distribution, or of a file or folder.

    Args:
        data: a name of DISTRIBUTIONS; or a ``.npy`` array, a ``.safetensors`` file, an index of several or a
            folder of them.
        count: of vectors; of a file at most as many as it holds.
        seed: of what is drawn.
        scale_rule: by which they will be rounded, for the record.
        include: of a checkpoint, patterns of the names that are taken; empty for all.
        exclude: patterns of names that are not taken.

    Raises:
        ArgumentError: no such distribution or file, fewer than one vector, or a pattern that matches nothing.
        DataError: the file cannot be read, or what it holds is no floating point, not finite or all zero.
    """
    check_whole("vectors", count)
    check_whole("seed", seed, least=0)
    random = np.random.default_rng(seed)
    if str(data) in DISTRIBUTIONS:
        if include or exclude:
            raise ArgumentError(f"`include` and `exclude` choose tensors of a file, and {data} has none")
        about, draw = DISTRIBUTIONS[str(data)]
        values = draw(random, count).astype(np.float32)
    else:
        values, about = _stored(Path(data), count, random, include, exclude)
    if not values.any():
        raise DataError(f"all vectors of {data} are zero, or too small for float32; expected values to round")
    record = ExploredData(str(data), about, len(values), values.shape[1], seed, scale_rule)
    return Vectors(values, record)


@dataclass(frozen=True)
class _Source:
    """A tensor as rows of values."""

    name: str
    shape: tuple[int, ...]
    read: Callable[[Sequence[int], int], Singles]  # starts in C order, length: the values from each start on

    def pieces(self, length: int) -> int:
        """Return how many vectors the rows hold, each within one row."""
        rows, row = matrix_shape(self.shape)
        return rows * (row // length)

    def take(self, places: NDArray[np.int64], length: int) -> Singles:
        """Return the vectors of these numbers, (len(places), length)."""
        row = matrix_shape(self.shape)[1]
        line, piece = np.divmod(places, row // length)
        return self.read((line * row + piece * length).tolist(), length)


def _stored(
    path: Path, count: int, random: np.random.Generator, include: Sequence[str], exclude: Sequence[str]
) -> tuple[Singles, str]:
    """Return vectors of a file in random order, and a sentence that says which."""
    if not path.exists():
        raise ArgumentError(
            f"data={str(path)!r:.200} is no distribution and no file; expected one of"
            f" {', '.join(DISTRIBUTIONS)}, a .npy array, or .safetensors: a file, an index or a folder"
        )
    is_array = path.suffix.lower() == ".npy"
    sources, others = ([_array(path)], []) if is_array else _checkpoint(path, include, exclude)
    if is_array and (include or exclude):
        raise ArgumentError(f"`include` and `exclude` choose tensors of a checkpoint, and {path} is an array")
    # Vectors of one length: a shorter row is never filled up, nor continued in the next one.
    length = min(LENGTH, max((matrix_shape(s.shape)[1] for s in sources), default=0))
    used = [s for s in sources if length and s.pieces(length)]
    if not used:
        raise DataError(f"{path} holds no floating-point values; expected tensors to take vectors from")
    ends = np.cumsum([s.pieces(length) for s in used])
    total = int(ends[-1])
    chosen = random.choice(total, min(count, total), replace=False)
    order = np.argsort(chosen)  # read in the order of the file, kept in the order of the draw
    values = np.empty((len(chosen), length), np.float32)
    tensor_of = np.searchsorted(ends, chosen[order], side="right")
    for number in np.unique(tensor_of):
        at = order[tensor_of == number]
        source, before = used[number], int(ends[number - 1]) if number else 0
        taken = source.take(chosen[at] - before, length)
        if not np.isfinite(taken).all():
            way_out = "take them out of the array" if is_array else "leave it out by `exclude`"
            raise DataError(f"{path}: {source.name!r:.200} holds NaN, or values beyond float32; {way_out}")
        values[at] = taken
    left = len(sources) - len(used)
    about = f"{len(chosen)} of {total} pieces of the rows of {_tensors(len(used))}"
    about += f"; {_tensors(left)} with shorter rows left out" if left else ""
    return values, about + (
        f"; {_tensors(len(others))} without floating-point values left out ({_some(others)})"
        if others
        else ""
    )


def _some(names: Sequence[str]) -> str:
    """Return the first names, and how many more there are."""
    shown = ", ".join(f"{name!r:.100}" for name in names[:_SHOWN])
    return shown + (f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else "")


def _tensors(count: int) -> str:
    return "one tensor" if count == 1 else f"{count} tensors"


def _array(path: Path) -> _Source:
    try:
        array = np.load(path, mmap_mode="r", allow_pickle=False)
    except (ValueError, OSError, EOFError) as error:
        raise DataError(f"{path} cannot be read as a .npy array ({error!s:.200}); write it anew") from None
    if array.dtype.kind != "f":
        raise DataError(f"{path} is an array of {array.dtype}; expected floating point")

    def read(starts: Sequence[int], length: int) -> Singles:
        flat = np.ascontiguousarray(array).reshape(-1)
        places = np.asarray(starts)[:, None] + np.arange(length)
        with np.errstate(over="ignore"):  # what float32 cannot hold becomes infinite, which is refused
            return flat[places].astype(np.float32)

    return _Source(path.name, array.shape, read)


def _checkpoint(
    path: Path, include: Sequence[str], exclude: Sequence[str]
) -> tuple[list[_Source], list[str]]:
    """Return the tensors of floating point, and the names of those that were chosen and are not."""
    if path.suffix.lower() in (".onnx", ".gguf"):
        raise DataError(f"{path}: vectors are taken from .npy and .safetensors; convert it first")
    tensors = ordinary_tensors(path)
    check_patterns([t.name for t in tensors], include, exclude)
    chosen = [t for t in tensors if is_selected(t.name, include, exclude)]

    def source(tensor: StoredTensor) -> _Source:
        def read(starts: Sequence[int], length: int) -> Singles:
            with np.errstate(over="ignore"):
                pieces = [widened(v).astype(np.float32) for v in slices(tensor, starts, length)]
            return np.stack(pieces)

        return _Source(tensor.name, tensor.shape, read)

    used = [t for t in chosen if t.is_float and t.count]
    return [source(t) for t in used], [t.name for t in chosen if t not in used]
