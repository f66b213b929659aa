"""Read sparse matrices in the MatrixMarket format, through SciPy."""

from __future__ import annotations

import os
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from fewbits.errors import DataError

if TYPE_CHECKING:
    from scipy.sparse import csr_array


def read_matrix(path: str | os.PathLike[str], *, complex_too: bool = False) -> csr_array:
    """Return a MatrixMarket file as a sparse matrix.

    Symmetric and skew-symmetric storage is expanded, integers become float64, an ``array`` file keeps its
    nonzero entries, and entries given twice are added up.

    Args:
        path: a ``.mtx`` file, coordinate or array, real or integer.
        complex_too: whether it may be complex.

    Returns:
        scipy.sparse.csr_array of float64, or complex128, with sorted indices; every entry is finite.

    Raises:
        DataError: the file is missing, damaged, complex where it may not be, of zeros alone or a pattern
            without values, or is shorter than its header says.
    """
    matrix = _read(Path(path), complex_too)
    if not np.count_nonzero(matrix.data):
        raise DataError(f"{path} holds no nonzero entries; expected at least one")
    return matrix


def read_columns(path: str | os.PathLike[str]) -> NDArray[np.float64 | np.complex128]:
    """Return a MatrixMarket file as the columns of a dense array, (n, k), complex or not; all may be zero.

    Raises:
        DataError: as for :func:`read_matrix`.
    """
    columns: NDArray[np.float64 | np.complex128] = _read(Path(path), True).toarray()
    return columns


def _read(file: Path, complex_too: bool) -> csr_array:
    from scipy import io, sparse

    if not file.is_file():
        raise DataError(f"{file} is not a file; expected a MatrixMarket file (.mtx): check the path")
    if file.suffix.lower() != ".mtx":
        raise DataError(
            f"{file} is no .mtx file by its name; expected an uncompressed MatrixMarket file: check the path"
        )
    try:
        text = _text(file)
        rows, columns, entries, layout, field, symmetry = io.mminfo(BytesIO(text))
        _check_claims(file, len(text), rows, columns, entries, layout, field, symmetry, complex_too)
        dtype = np.complex128 if field == "complex" else np.float64
        matrix = sparse.csr_array(io.mmread(BytesIO(text)), dtype=dtype)
    except (ValueError, OverflowError, OSError, MemoryError) as error:
        if isinstance(error, DataError):
            raise
        raise DataError(f"{file} cannot be read as MatrixMarket ({error}); fetch or write it again") from None
    matrix.sum_duplicates()
    bad = int(np.count_nonzero(~np.isfinite(matrix.data)))
    if bad:
        raise DataError(
            f"{file} holds {bad} entries that are NaN or infinite; expected finite numbers: clean the matrix"
        )
    return matrix


def _text(file: Path) -> bytes:
    """Return the file in a form on which SciPy does not crash: without zero bytes, ending in a line end."""
    text = file.read_bytes()
    if b"\0" in text:
        raise DataError(
            f"{file} is not text: it holds zero bytes; expected a MatrixMarket file: fetch it again"
        )
    return text + b"\n"


def _check_claims(
    file: Path,
    size: int,
    rows: int,
    columns: int,
    entries: int,
    layout: str,
    field: str,
    symmetry: str,
    complex_too: bool,
) -> None:
    """Raise DataError for an invalid header, before memory is allocated for it."""
    if field == "pattern":
        raise DataError(f"{file} holds a pattern without values; expected a real matrix")
    if field == "complex" and not complex_too:
        raise DataError(
            f"{file} is complex; expected a real matrix: write its real and imaginary parts as two files"
        )
    # SciPy crashes on such matrices.
    if not (rows and columns) or (symmetry != "general" and rows != columns):
        raise DataError(
            f"{file} is {rows} x {columns} and {symmetry}, which no matrix is; fetch or write it again"
        )
    # A coordinate entry takes "1 1 1" and a line end; of a symmetric array the header counts both halves, and
    # each number in the file takes two bytes.
    most = 2 * size if layout == "array" else size // 6
    if max(rows, columns) > size or entries > most:
        raise DataError(
            f"{file} claims {rows} x {columns} with {entries} entries and has only {size} bytes; it is cut "
            "short or damaged: fetch or write it again"
        )
