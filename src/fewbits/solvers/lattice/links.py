"""Gauge fields: (4, T, Z, Y, X, 3, 3) complex128, in SU(3), for directions x, y, z, t and each site."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fewbits.errors import ArgumentError, DataError
from fewbits.solvers.lattice.axes import Four, four_counts, four_signs
from fewbits.solvers.lattice.given_fields import described
from fewbits.solvers.operators.vectors import real_number, refuse_mask

Array = NDArray[np.complex128]
ROUNDING = 1e-14  # length below which a projected unit row counts as parallel to another
NEAR = 1e-12  # largest deviation of a link from SU(3)
LARGEST = 1e140  # of a mass or a coefficient: M^+ M, and sums of squares of its images, stay in range


def unit_links(shape: tuple[int, int, int, int]) -> Array:
    """Return the free field on a lattice of (T, Z, Y, X) sites: every link is one.

    Raises:
        ArgumentError: a size below 1.
    """
    return np.broadcast_to(np.eye(3, dtype=np.complex128), (4, *_sizes(shape), 3, 3)).copy()


def random_links(shape: tuple[int, int, int, int], seed: int = 0) -> Array:
    """Return a hot field: links drawn uniformly from SU(3), by the Haar measure.

    Raises:
        ArgumentError: a size below 1, or a seed that is no whole number of at least 0.
    """
    return project(_normal((4, *_sizes(shape), 3, 3), seed))


def smooth_links(shape: tuple[int, int, int, int], roughness: float = 0.2, seed: int = 0) -> Array:
    """Return a field near the free one: 1 + roughness times Gaussian noise, projected to SU(3).

    Raises:
        ArgumentError: a size below 1, a roughness below 0, or a seed that is no whole number of at least 0.
    """
    amplitude = real_number(roughness)
    if not 0 <= amplitude < math.inf:
        raise ArgumentError(f"roughness={roughness!r}; expected zero or more")
    noise = _normal((4, *_sizes(shape), 3, 3), seed)
    return project(np.eye(3) + amplitude * (noise - noise.conj().swapaxes(-1, -2)) / 2)


def project(matrices: ArrayLike) -> Array:
    """Project matrices to SU(3), (..., 3, 3) complex128: Gram-Schmidt on the rows, determinant one.

    Raises:
        ArgumentError: another shape, or not numeric.
        DataError: NaN or infinity, or two rows that are zero or parallel.
    """
    refuse_mask(matrices, "an array of matrices")
    try:
        matrices = np.asarray(matrices)
    except ValueError:
        raise ArgumentError(
            "matrices are lists of different lengths; expected numbers, (..., 3, 3)"
        ) from None
    if matrices.ndim < 2 or matrices.shape[-2:] != (3, 3) or matrices.dtype.kind not in "iufc":
        raise ArgumentError(f"matrices are {matrices.dtype} {matrices.shape}; expected numbers, (..., 3, 3)")
    matrices = matrices.astype(np.complex128)
    if not np.isfinite(matrices).all():
        raise DataError("the matrices hold NaN or infinity; remove them first")
    a, b = matrices[..., 0, :], matrices[..., 1, :]
    a = _unit(_unit(a))
    b = _unit(b)
    for _ in range(2):  # twice, because rounding leaves a part of a in a nearly parallel b
        b = _unit(b - (a.conj() * b).sum(-1, keepdims=True) * a, least=ROUNDING)
    return np.stack([a, b, np.cross(a, b).conj()], -2)


def _unit(rows: Array, least: float = 1e-300) -> Array:
    """Return rows normalized to length one; raise DataError if one is shorter than ``least``."""
    largest = np.abs(rows).max(-1, keepdims=True, initial=0)
    if not (largest > least).all():
        raise DataError("two rows of a matrix are zero or parallel, and determine no matrix of SU(3)")
    rows = rows / largest
    unit: Array = rows / np.linalg.norm(rows, axis=-1, keepdims=True)
    return unit


def check_shape(links: object) -> Four:
    """Return T, Z, Y and X of a gauge field; raise ArgumentError if this is none."""
    refuse_mask(links, "a gauge field")
    if (
        not isinstance(links, np.ndarray)
        or links.ndim != 7
        or (links.shape[0], *links.shape[5:]) != (4, 3, 3)
        or links.dtype.kind not in "buifc"
    ):
        raise ArgumentError(
            f"links are {described(links)}; expected a complex array of shape (4, T, Z, Y, X, 3, 3)"
        )
    return _sizes(links.shape[1:5])


def check_links(links: Array) -> None:
    """Raise an error if these are not links, of the shape that :func:`check_shape` takes.

    Raises:
        ArgumentError: a link that is not in SU(3).
        DataError: NaN or infinity.
    """
    if not np.isfinite(links).all():
        raise DataError("links hold NaN or infinity; remove them first")
    links = links.astype(np.complex128)
    off = np.abs(links @ links.conj().swapaxes(-1, -2) - np.eye(3)).max()
    off = max(off, np.abs(np.linalg.det(links) - 1).max())
    if off > NEAR:
        signed = int((np.linalg.det(links).real < -0.5).sum())
        if signed:
            raise ArgumentError(
                f"{signed} links have the determinant -1, as links with the sign of an antiperiodic boundary"
                " have; give them without it, and boundary=(-1, 1, 1, 1)"
            )
        raise ArgumentError(
            f"links are off SU(3) by {off:.1e}, in U U^+ - 1 or in det U - 1; expected {NEAR} at most: pass"
            " lattice.project(links)"
        )


def with_boundary(links: Array, boundary: Sequence[int]) -> Array:
    """Return the links, negated where they cross the end of an antiperiodic axis."""
    signed = links.astype(np.complex128)
    for axis, sign in enumerate(boundary):
        np.moveaxis(signed[3 - axis], axis, 0)[-1] *= sign  # directions are x, y, z, t
    return signed


def read_boundary(boundary: Sequence[int]) -> Four:
    """Return four signs; raise ArgumentError if a boundary is something else."""
    signs = four_signs(boundary)
    if signs is None:
        raise ArgumentError(f"boundary={boundary!r}; expected 1 or -1 along T, Z, Y and X")
    return signs


def read_number(value: float, name: str) -> float:
    """Return a mass or a coefficient in double precision.

    Raises:
        ArgumentError: it is no finite real number, or M^+ M would leave the range of double precision.
    """
    number = real_number(value)
    if not math.isfinite(number):
        raise ArgumentError(f"{name}={value!r}; expected a finite real number")
    if abs(number) > LARGEST:
        raise ArgumentError(f"{name}={value!r}; expected {LARGEST} at most, as M^+ M holds its square")
    return number


def _sizes(shape: object) -> Four:
    sizes = four_counts(shape)
    if sizes is None:
        raise ArgumentError(f"a lattice of {shape!r} sites; expected four sizes (T, Z, Y, X), whole numbers")
    return sizes


def _normal(shape: tuple[int, ...], seed: int) -> Array:
    try:
        generator = np.random.default_rng(seed)
    except (TypeError, ValueError):
        raise ArgumentError(f"seed={seed!r}; expected a whole number of at least 0") from None
    return generator.standard_normal((*shape, 2)).view(np.complex128)[..., 0]
