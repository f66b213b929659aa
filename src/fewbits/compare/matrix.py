"""The errors of entries and the condition numbers of a sparse matrix stored in each format."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, as_completed
from contextlib import contextmanager
from dataclasses import dataclass
from math import frexp, inf, isfinite, isinf, isnan, nan
from pathlib import Path
from threading import Lock
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from fewbits import kernels
from fewbits.errors import ArgumentError
from fewbits.files.matrix import read_matrix
from fewbits.formats import Format, packed_bits, parse, shares_scale
from fewbits.metrics import Tally
from fewbits.records import MatrixScore
from fewbits.typing import Progress

if TYPE_CHECKING:
    from scipy.sparse import csr_array

# Formats in which solvers store matrices: scalars, QUDA's scaled integers, and blocks from 9 bits down to 6.
MATRIX_FORMATS = (
    "fp32", "bf16", "fp16", "posit16_1", "quda_half", "quda_quarter", "int8_channel", "mx9", "mxint8",
    "mxfp8_e4m3", "fp8_e4m3_tensor", "fp8_e4m3", "mx6",
)  # fmt: skip

MOST_ROWS_FACTORED = 200_000  # factorizations of larger matrices can take hours and all memory

_MOST_ROWS_INVERTED = 512  # inverses of larger matrices take seconds for all formats; their norm is estimated
_DENSE = 0.25  # share of nonzeros from which factors fill in and a dense factorization is faster
_FACTOR_BYTES = 1 << 31  # bytes of all factors in memory at once, if there are several
_DRAWS = Lock()  # one estimate at a time: they share NumPy's global state

_PIECE = 1 << 16  # values processed at once: their float64 temporaries fit in the cache

Reals = NDArray[np.float64]
Indices = NDArray[np.intp]


@dataclass(frozen=True)
class _Rounded:
    """The entries of a matrix in one format, and their errors."""

    values: Reals  # (entries,)
    tally: Tally


def measure_matrix(
    path: str | os.PathLike[str],
    formats: Sequence[str | Format] = MATRIX_FORMATS,
    *,
    progress: Progress | None = None,
) -> tuple[MatrixScore, ...]:
    """Round the entries of a sparse matrix to each format, to nearest even, and measure the errors.

    Entries are taken row by row, as in CSR, with symmetric storage expanded. Blocks of a fixed size run along
    that sequence and may extend into the next row. A scale per channel is shared by the entries of a row, a
    scale per tensor by the whole matrix.

    The condition number is that of the 1-norm, ||A|| ||A^-1||, from LU factors. Up to 512 rows all of A^-1 is
    computed; beyond that its norm is estimated (Higham and Tisseur, SIAM J. Matrix Anal. Appl. 21, 2000):
    almost always within a factor of three, and never above the true value except by rounding. It is inf if LU
    finds the matrix singular, and nan if there is none: the matrix is not square, has infinite entries or
    more than ``MOST_ROWS_FACTORED`` rows. The note says which.

    Args:
        path: a MatrixMarket file, real or integer.
        formats: formats or their texts.
        progress: called as ``progress("measuring formats", steps done, all steps)``, first before the file is
            read. Reading the matrix is one step, and each format is one. Formats are measured in parallel
            threads.

    Returns:
        One score for each format, in the order given.

    Raises:
        DataError: the file is missing, damaged, complex or without values.
        FormatError: no such format.
        ArgumentError: no formats.
        MissingDependencyError: SciPy is not installed.
    """
    chosen = [parse(f) for f in formats]
    if not chosen:
        raise ArgumentError("no formats to measure; give at least one, for example 'bf16'")
    advance = progress or (lambda what, done, total: None)
    what, steps = "measuring formats", 1 + len(chosen)
    advance(what, 0, steps)  # shows progress before a large matrix is read
    matrix = read_matrix(path)
    conditions = _Conditions(matrix)
    advance(what, 1, steps)
    with ThreadPoolExecutor(conditions.at_once) as pool:
        try:
            jobs = [pool.submit(_score, Path(path).name, matrix, conditions, fmt) for fmt in chosen]
            for done, _ in enumerate(as_completed(jobs)):
                advance(what, 2 + done, steps)
            return tuple(job.result() for job in jobs)
        finally:
            pool.shutdown(cancel_futures=True)


class _Conditions:
    """The condition numbers of a matrix and its rounded versions; equal matrices are factored once."""

    def __init__(self, matrix: csr_array) -> None:
        self._known: dict[bytes, Future[float]] = {_digest(matrix): Future()}
        self._lock = Lock()
        self.exact, entries = _estimate(matrix)
        self._known[_digest(matrix)].set_result(self.exact)
        # Factors of the rounded matrices take about as much memory.
        self.at_once = max(1, min(kernels.threads(), _FACTOR_BYTES // max(16 * entries, 1)))

    def of(self, matrix: csr_array) -> float:
        """Return the condition of a matrix with the same sparsity pattern; thread-safe."""
        with self._lock:
            digest = _digest(matrix)
            first = digest not in self._known
            job = self._known.setdefault(digest, Future())
        if first:
            try:
                job.set_result(condition_estimate(matrix))
            except BaseException as error:
                job.set_exception(error)
        return job.result()


def _digest(matrix: csr_array) -> bytes:
    return hashlib.blake2b(matrix.data).digest()


def condition_estimate(matrix: csr_array) -> float:
    """Return the 1-norm condition number of a sparse matrix, estimated beyond 512 rows.

    Args:
        matrix: scipy.sparse array of float64, (n, n).

    Returns:
        The number, or its estimate (Higham and Tisseur, 2000); inf if the matrix is singular, nan if it has
        none.
    """
    return _estimate(matrix)[0]


def _estimate(matrix: csr_array) -> tuple[float, int]:
    """Return the condition and the number of entries in the factors; 0 without factors."""
    from scipy.sparse import csc_array
    from scipy.sparse.csgraph import structural_rank
    from scipy.sparse.linalg import LinearOperator, onenormest, splu

    n = matrix.shape[0]
    if _why_no_condition(matrix) or not np.isfinite(matrix.data).all():
        return nan, 0
    columns = csc_array(_scaled(matrix, _exponent(matrix)))
    columns.eliminate_zeros()
    if columns.nnz > _DENSE * n * n:
        return _dense_estimate(columns.toarray(order="F")), n * n
    # SuperLU reads out of bounds if a matrix is structurally singular.
    if structural_rank(columns) < n:
        return inf, 0
    try:
        factors = splu(columns)
    except RuntimeError:  # "Factor is exactly singular"
        return inf, 0
    inverse = LinearOperator(
        (n, n), matvec=factors.solve, rmatvec=lambda b: factors.solve(b, "T"), dtype=np.float64
    )
    with np.errstate(over="ignore", invalid="ignore"):
        if n <= _MOST_ROWS_INVERTED:
            of_inverse = _largest_sum(factors.solve(np.eye(n)))
        else:
            with _repeatable_draws():
                of_inverse = float(onenormest(inverse))
        estimate = _one_norm(columns) * of_inverse
    # NaN means that a solve overflowed.
    return inf if isnan(estimate) else estimate, int(factors.nnz)


def _dense_estimate(matrix: Reals) -> float:
    """Return the condition by LAPACK; a sparse factorization of a full matrix takes minutes."""
    from scipy.linalg.lapack import dgecon, dgetrf, dgetri

    norm = _largest_sum(matrix)
    factors, pivots, singular = dgetrf(matrix, overwrite_a=True)
    if singular:
        return inf
    if len(matrix) <= _MOST_ROWS_INVERTED:
        return norm * _largest_sum(dgetri(factors, pivots, overwrite_lu=True)[0])
    share = float(dgecon(factors, norm)[0])
    return 1 / share if share > 0 else inf


def _exponent(matrix: csr_array) -> int:
    """Return e so that all magnitudes divided by 2^e are at most one."""
    return frexp(float(np.abs(matrix.data).max(initial=0.0)))[1]


def _scaled(matrix: csr_array, exponent: int) -> csr_array:
    """Return the matrix divided by 2^e: exactly, so that norms and inverses of any unit stay in range."""
    data = _shifted(matrix.data, -exponent)
    return type(matrix)((data, matrix.indices, matrix.indptr), shape=matrix.shape)


def _shifted(values: Reals, exponent: int) -> Reals:
    """Return the values times 2^e; what leaves the range is infinite, without a warning."""
    with np.errstate(over="ignore"):
        return np.ldexp(values, exponent)


def _why_no_condition(matrix: csr_array) -> str:
    rows, columns = matrix.shape
    if rows != columns:
        return f"{rows} x {columns} has no condition number"
    if rows > MOST_ROWS_FACTORED:
        return f"condition not estimated beyond {MOST_ROWS_FACTORED} rows"
    return ""


@contextmanager
def _repeatable_draws() -> Iterator[None]:
    """Seed SciPy's estimator for repeatable results, and restore NumPy's global random state afterwards."""
    with _DRAWS:
        state = np.random.get_state()  # noqa: NPY002 - it is the state that SciPy uses
        np.random.seed(0)  # noqa: NPY002
        try:
            yield
        finally:
            np.random.set_state(state)  # noqa: NPY002


def _score(name: str, matrix: csr_array, conditions: _Conditions, format: Format) -> MatrixScore:
    rounded = _round(matrix, format)
    there = type(matrix)((rounded.values, matrix.indices, matrix.indptr), shape=matrix.shape)
    condition, exact = conditions.of(there), conditions.exact
    unit = -_exponent(matrix)
    change = _shifted(rounded.values - matrix.data, unit)
    return MatrixScore(
        matrix=name,
        format=str(format),
        bits_per_value=format.bits_per_value,
        values_bytes=_packed_bytes(matrix, format),
        error=rounded.tally.error(),
        frobenius_error=_frobenius(change) / _frobenius(_shifted(matrix.data, unit)),
        condition=condition,
        condition_fp64=exact,
        note=_note(matrix, there, exact, condition, rounded.tally),
    )


def _round(matrix: csr_array, format: Format) -> _Rounded:
    if shares_scale(format, "channel"):
        return _round_by_row(matrix, format)
    chosen, data = kernels.options(format), matrix.data
    amax = kernels.largest(data)
    out, tally = np.empty_like(data), Tally()
    # Blocks run along all entries in order, which are cut at multiples of the block size.
    step = format.block_size * max(1, _PIECE // format.block_size)
    for start in range(0, data.size, step):
        x = data[None, start : start + step]
        y = kernels.fake_quantize(x, format, 1, chosen, amax)
        out[start : start + step] = y[0]
        tally.add(x, y, kernels.limits(x, format, 1, chosen, amax))
    return _Rounded(out, tally)


def _round_by_row(matrix: csr_array, format: Format) -> _Rounded:
    """Round the entries of each row by a scale of their own."""
    chosen, data = kernels.options(format), matrix.data
    out, tally = np.empty_like(data), Tally()
    for where, real in _by_row(matrix.indptr):
        # The zeros that pad short rows change no scale and are dropped again.
        x = np.where(real, data[where], 0.0)
        y = kernels.fake_quantize(x, format, 1, chosen)
        limits = np.broadcast_to(kernels.limits(x, format, 1, chosen), x.shape)
        out[where[real]] = y[real]
        tally.add(x[real], y[real], limits[real])
    return _Rounded(out, tally)


def _by_row(indptr: Indices) -> Iterator[tuple[Indices, NDArray[np.bool_]]]:
    """Yield indices of entries as (rows, width) with a mask of real entries; rows are grouped by length."""
    counts = np.diff(indptr)
    # Widths are powers of two, so at most half of each array is padding.
    widths = 1 << np.ceil(np.log2(np.maximum(counts, 1))).astype(np.int64)
    for width in np.unique(widths[counts > 0]):
        rows = np.flatnonzero((widths == width) & (counts > 0))
        step = max(1, _PIECE // int(width))
        for at in range(0, rows.size, step):
            few = rows[at : at + step]
            real = np.arange(width) < counts[few, None]
            yield np.where(real, indptr[few, None] + np.arange(width), 0), real


def _packed_bytes(matrix: csr_array, format: Format) -> int:
    counts = np.diff(matrix.indptr) if shares_scale(format, "channel") else np.array([matrix.nnz])
    lengths, times = np.unique(counts[counts > 0], return_counts=True)
    bits = sum(int(k) * packed_bits(format, (int(n),)) for n, k in zip(lengths, times, strict=True))
    return -(-bits // 8)


def _frobenius(values: Reals) -> float:
    largest = float(np.abs(values).max())
    # Scaled, so that squares of very small changes do not underflow, nor those of large ones overflow.
    return largest * float(np.linalg.norm(values / largest)) if largest not in (0.0, inf) else largest


def _note(matrix: csr_array, there: csr_array, exact: float, condition: float, tally: Tally) -> str:
    """Return remarks that a reader should not overlook."""
    lost = int(np.count_nonzero(~np.isfinite(there.data)))
    remarks = [
        _entries(lost, "overflow", " to infinity"),
        _entries(max(tally.saturated - lost, 0), "saturate"),
        _entries(tally.flushed, "become", " zero"),
        _why_no_condition(matrix),
        "singular before rounding" if isinf(exact) else "singular" if isinf(condition) else "",
    ]
    if isfinite(exact) and isfinite(condition):
        remarks.append(_perturbation(matrix, there, exact))
    return "; ".join(text for text in remarks if text)


def _entries(count: int, verb: str, rest: str = "") -> str:
    if not count:
        return ""
    return f"1 entry {verb}s{rest}" if count == 1 else f"{count} entries {verb}{rest}"


def _one_norm(matrix: csr_array) -> float:
    """Return the 1-norm, the largest column sum of magnitudes; SciPy 1.11 fails on a sparse array."""
    return float(np.asarray(abs(matrix).sum(axis=0)).max())


def _largest_sum(matrix: Reals) -> float:
    """Return the 1-norm of a dense matrix."""
    return float(np.abs(matrix).sum(0).max())


def _perturbation(matrix: csr_array, there: csr_array, exact: float) -> str:
    # The nearest singular matrix is ||A|| / condition away (Gastinel and Kahan; Higham, Accuracy and
    # Stability of Numerical Algorithms, 2nd edition, theorem 6.5).
    unit = _exponent(matrix)
    times = _one_norm(_scaled(there - matrix, unit)) / _one_norm(_scaled(matrix, unit)) * exact
    if times < 1:
        return ""
    shown = f"{times:.2g}" if times < 99.5 else f"{times:.0e}".replace("e+0", "e").replace("e+", "e")
    return f"perturbation is {shown} times the distance to singularity"
