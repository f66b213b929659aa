"""Cholesky factorization of Hermitian positive definite matrices, whose trailing updates may be narrow."""

from __future__ import annotations

from functools import partial

import torch

from fewbits.errors import DataError
from fewbits.solvers.dense.factors import Factors, Substitute, doubled, inverse_power, scaled_to, stretches
from fewbits.solvers.dense.rounded_products import Update, rounded_update
from fewbits.solvers.dense.substitution import with_cholesky
from fewbits.solvers.precision import roundoff

_TILE = 256  # rows and columns compared at once
_ROUNDING = 2.0**-40  # relative difference of two entries up to which rounding explains it
_PANEL = 256  # widest block of columns that LAPACK factorizes without recursion


def check_hermitian(a: torch.Tensor) -> bool:
    """Return whether a matrix, (n, n), is its conjugate transpose exactly; if not, it is but for rounding.

    Rounding is up to 2^-40 of an entry, or of sqrt(a_ii a_jj), which no entry of a definite matrix exceeds:
    the largest entry of all says nothing of rows in other units. In a row whose diagonal is not positive the
    largest entry takes its place.

    Raises:
        DataError: they differ by more; the message says where.
    """
    diagonal = a.diagonal().real
    if not bool((diagonal > 0).all()):
        largest = torch.cat([a[part].abs().amax(1) for part in stretches(a)])
        diagonal = torch.where(diagonal > 0, diagonal, largest)
    scale = diagonal.sqrt()
    worst, at, exactly = _ROUNDING, (0, 0), True
    parts = [slice(start, start + _TILE) for start in range(0, len(a), _TILE)]
    # Tiles, because reading a large matrix along its columns takes ten times as long.
    for i, rows in enumerate(parts):
        for columns in parts[: i + 1]:
            tile = a[rows, columns]
            difference = (tile - a[columns, rows].mH).abs()
            if not bool(difference.any()):
                continue
            exactly = False
            sizes = torch.maximum(tile.abs(), scale[rows, None] * scale[columns])
            share = torch.where(difference > 0, difference / sizes, 0.0)
            if float(share.max()) > worst:
                worst = float(share.max())
                row, column = divmod(int(share.argmax()), share.shape[1])
                at = (rows.start + row, columns.start + column)
    if worst > _ROUNDING:
        i, j = at
        kind = "Hermitian" if a.is_complex() else "symmetric"
        raise DataError(
            f"A is not {kind}: A[{i}, {j}] is {a[i, j].item():.16g} and A[{j}, {i}] {a[j, i].item():.16g};"
            " assume_a='gen' solves it"
        )
    return exactly


def factorize_double(a: torch.Tensor) -> Factors | None:
    """Factorize with LAPACK's POTRF; None where a pivot is not positive."""
    lower, failed = torch.linalg.cholesky_ex(a)
    return None if int(failed) else Factors(*_substitutions(lower), lower.diagonal())


def to_shifted_single(a: torch.Tensor, factor: str) -> tuple[torch.Tensor, torch.Tensor | None]:
    """Return D A D in float32 or complex64, its diagonal increased by two roundoffs of ``factor``, and D.

    D holds powers of two that bring the diagonal to about one; it is None if float32 holds A as it is. The
    shift keeps rounding from making a pivot negative (Higham and Pranesh, Exploiting Lower Precision
    Arithmetic in Solving Symmetric Positive Definite Linear Systems and Least Squares Problems, 2021,
    algorithm 3.1).
    """
    dtype = torch.complex64 if a.is_complex() else torch.float32
    diagonal = a.diagonal().real
    if factor != "fp16" and bool(((diagonal > 2.0**-30) & (diagonal < 2.0**30)).all()):
        low, scale = a.to(dtype), None  # float32 holds it as it is
    else:
        scale = inverse_power(diagonal.clamp(min=0).sqrt())
        low = scaled_to(dtype, a, scale, scale)
    low.diagonal().mul_(1 + 2 * roundoff(factor))
    return low, scale


def factorize(low: torch.Tensor, factor: str, scale: torch.Tensor | None) -> Factors | None:
    """Factorize (n, n) float32 or complex64, updates in ``factor``; None where a pivot is not positive."""
    if factor == "fp32":
        # LAPACK reads the columns of the lower half: the rows of the upper one.
        lower, failed = torch.linalg.cholesky_ex(low.mH)
        if int(failed):
            return None
    else:
        lower = low.contiguous()
        if not _recurse(lower, rounded_update(factor)):
            return None
    widened = partial(with_cholesky, lower, lambda: _substitutions(doubled(lower)))
    return Factors(*_substitutions(lower), lower.diagonal(), widened, scale, scale)


def _substitutions(lower: torch.Tensor) -> tuple[Substitute, Substitute]:
    """Return the substitution twice: A is its own adjoint."""

    def substitute(b: torch.Tensor) -> torch.Tensor:
        y = torch.linalg.solve_triangular(lower, b, upper=False)
        x: torch.Tensor = torch.linalg.solve_triangular(lower.mH, y, upper=True)
        return x

    return substitute, substitute


def _recurse(a: torch.Tensor, update: Update) -> bool:
    """Put the lower factor of a, (n, n), over its lower half; return whether every pivot was positive."""
    n = len(a)
    if n <= _PANEL:
        lower, failed = torch.linalg.cholesky_ex(a)
        a.copy_(lower)
        return not int(failed)
    half = (n // 2 + _PANEL - 1) // _PANEL * _PANEL
    first, below, rest = a[:half, :half], a[half:, :half], a[half:, half:]
    if not _recurse(first, update):
        return False
    below.copy_(torch.linalg.solve_triangular(first.mH, below, upper=True, left=False))
    update(rest, below, below.mH)
    return _recurse(rest, update)
