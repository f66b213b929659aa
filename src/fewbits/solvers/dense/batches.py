"""Batches of systems: broadcast shapes, and small systems solved together in double precision."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch

from fewbits.errors import ArgumentError, DataError
from fewbits.solvers.dense import condition
from fewbits.solvers.dense.arrays import Numbers, check_finite, check_together, with_gradient
from fewbits.solvers.dense.refinement import EPS
from fewbits.solvers.solution import of_family
from fewbits.typing import Array

SolveOne = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]

_MILD = 2.0**4  # ratio of the largest entries of rows or columns up to which scaling changes little
_CERTAIN = 1e-3  # share of the largest acceptable condition below which one solution is enough


def solve(a: Numbers, b: Array, solve_one: SolveOne, together: bool) -> Array:
    """Solve the systems of a, (..., n, n), and b; shapes as in torch.linalg.solve.

    Args:
        a: (..., n, n).
        b: (n,); (..., n), if its leading axes are exactly those of a; or (..., n, k).
        solve_one: solves a single system.
        together: whether LAPACK in double precision is the only method to try, so that systems can be
            batched.

    Raises:
        ArgumentError: shapes that do not fit.
        DataError: NaN or infinity, or a singular matrix; the message says which system.
    """
    systems: torch.Tensor = with_gradient(a, "A")
    sides: torch.Tensor = with_gradient(b, "b")
    check_together(systems, sides)
    if systems.ndim < 2 or systems.shape[-2] != systems.shape[-1]:
        raise ArgumentError(f"A has the shape {tuple(systems.shape)}; expected square matrices")
    n, given = systems.shape[-1], tuple(sides.shape)
    vectors = sides.ndim == 1 or sides.shape == systems.shape[:-1]
    sides = sides[..., None] if vectors else sides
    try:
        front = np.broadcast_shapes(tuple(systems.shape[:-2]), tuple(sides.shape[:-2]))
    except ValueError:
        front = None
    if front is None or sides.shape[-2:-1] != (n,):
        raise ArgumentError(
            f"b has the shape {given}; expected {(*systems.shape[:-1], 'k')} or"
            f" {tuple(systems.shape[:-1])} for an A of {tuple(systems.shape)}"
        )
    x = _solved(systems, sides, front, solve_one, together)
    return of_family(x[..., 0] if vectors else x, b)


def _solved(
    a: torch.Tensor,
    b: torch.Tensor,
    front: tuple[int, ...],
    solve_one: SolveOne,
    together: bool,
) -> torch.Tensor:
    n, k = b.shape[-2:]
    b = b.expand(*front, n, k)
    if b.numel() == 0:
        return b.to(torch.promote_types(a.dtype, b.dtype), copy=True)
    if a.ndim == 2:  # one matrix: more columns
        wide = b.movedim(-2, 0)
        return solve_one(a, wide.reshape(n, -1)).reshape(wide.shape).movedim(0, -2)
    systems, sides = a.expand(*front, n, n).reshape(-1, n, n), b.reshape(-1, n, k)
    # Transforms of torch.func can read no numbers of a batch, and have rules for single systems.
    transformed = torch._C._are_functorch_transforms_active()
    if together and not (systems.requires_grad or sides.requires_grad or transformed):
        return _together(systems, sides, solve_one).reshape(*front, n, k)
    solutions = [_named(i, solve_one, *pair) for i, pair in enumerate(zip(systems, sides, strict=True))]
    return torch.stack(solutions).reshape(*front, n, k)


def _named(i: int, solve_one: SolveOne, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    try:
        return solve_one(a, b)
    except DataError as error:
        raise DataError(f"system {i}: {error}") from None


def _together(a: torch.Tensor, b: torch.Tensor, solve_one: SolveOne) -> torch.Tensor:
    """Solve (m, n, n) systems in one call in double precision, then badly conditioned ones again singly."""
    check_finite(a, "A")
    check_finite(b, "b")
    dtype = torch.promote_types(a.dtype, b.dtype)
    a, b = a.to(dtype), b.to(dtype)
    lu, pivots, _ = torch.linalg.lu_factor_ex(a)
    n = a.shape[-1]
    probes = condition.mixed(n).to(a.device, dtype)
    x: torch.Tensor = torch.linalg.lu_solve(lu, pivots, torch.cat([b, probes.expand(len(a), n, 2)], 2))
    sizes = a.abs()
    estimates = sizes.sum(2).amax(1) * x[:, :, -2:].abs().amax((1, 2))
    rows, columns = sizes.amax(2), sizes.amax(1)
    uneven = (rows.amax(1) > _MILD * rows.amin(1)) | (columns.amax(1) > _MILD * columns.amin(1))
    easy = (estimates * n * EPS < _CERTAIN) & ~uneven & torch.isfinite(x.abs()).all((1, 2))
    x = x[:, :, :-2].contiguous()
    for i in (~easy).nonzero()[:, 0].tolist():
        x[i] = _named(i, solve_one, a[i], b[i])
    return x
