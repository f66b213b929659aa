"""Dense systems: factorize narrow, refine to double accuracy, fall back where that does not converge."""

from __future__ import annotations

import math
import time
from typing import Any

import numpy as np
import torch

from fewbits.errors import ArgumentError, DataError
from fewbits.solvers import lu, refine
from fewbits.solvers.precision import Precision
from fewbits.solvers.precision import precision as read
from fewbits.solvers.result import Result, Stage

SMALL = 3000  # unknowns below which double precision is as fast


class Factorization:
    """A square matrix, factorized for as many right-hand sides as one likes.

    Args:
        a: (n, n) numpy.ndarray or torch.Tensor; float64, float32, complex128 or complex64.
        precision: a name of :data:`PRECISIONS`, or ``auto``: the cheapest that converges on each right-hand
            side, and double precision in the end.

    Raises:
        ArgumentError: not a square matrix, or no such precision.
        DataError: NaN or infinity in it, or it is exactly singular.
    """

    def __init__(self, a: Any, precision: str | Precision = "auto") -> None:
        self.a = _tensor(a, "A")
        if self.a.ndim != 2 or self.a.shape[0] != self.a.shape[1]:
            raise ArgumentError(f"A has the shape {tuple(self.a.shape)}; expected a square matrix")
        self.chain = _chain(precision, len(self.a))
        # With the condition estimate, None where a pivot is zero or not finite.
        self._factors: dict[tuple[str, torch.dtype], tuple[lu.Factors, float | None]] = {}

    def solve(self, b: Any) -> Result:
        """Solve A x = b.

        Args:
            b: (n,) or (n, k), of A's family.

        Raises:
            ArgumentError: a shape that does not fit.
            DataError: NaN or infinity in b, or A is singular.
        """
        given = _tensor(b, "b")
        if given.ndim not in (1, 2) or given.shape[0] != len(self.a):
            raise ArgumentError(
                f"b has the shape {tuple(given.shape)}; expected ({len(self.a)},) or ({len(self.a)}, k)"
            )
        if given.numel() == 0:
            return Result(b, 0.0, 0, math.nan, ())
        dtype = torch.promote_types(self.a.dtype, given.dtype)
        columns = given.to(dtype).reshape(len(self.a), math.prod(given.shape[1:]))
        a = self.a.to(dtype)
        x, stage, condition = self._attempt(a, columns, self.chain[0])
        stages = [stage]
        for one in self.chain[1:]:
            if stages[-1].code >= 0:
                break
            x, stage, condition = self._attempt(a, columns, one)
            stages.append(stage)
        shaped = x.reshape(given.shape)
        found = shaped.numpy() if isinstance(b, np.ndarray) else shaped
        return Result(found, _backward_error(a, x, columns), max(stage.code, 0), condition, tuple(stages))

    def _attempt(self, a: torch.Tensor, b: torch.Tensor, one: Precision) -> tuple[torch.Tensor, Stage, float]:
        began = time.perf_counter()
        key = (one.factor, a.dtype)  # a complex right-hand side takes complex factors of a real matrix
        if key not in self._factors:
            factors, regular = lu.factorize(a, one.factor)
            self._factors[key] = (factors, _condition(a, factors) if regular else None)
            taken = time.perf_counter() - began
        else:
            taken = 0.0
        factors, condition = self._factors[key]
        began = time.perf_counter()
        if condition is None:
            if one.factor == "fp64":
                at = int((factors.lu.diagonal() == 0).nonzero()[0]) + 1
                raise DataError(
                    f"A is singular: pivot {at} of {len(a)} is exactly zero; there is no unique solution"
                )
            return b, Stage(one.name, -3, taken, 0.0), math.nan
        if one.refinement == "none":
            x, code = factors.solve(b), 0
        else:
            x, code = refine.refine(a, b, factors.solve, one.refinement)
        return x, Stage(one.name, code, taken, time.perf_counter() - began), condition


def factorize(a: Any, precision: str | Precision = "auto") -> Factorization:
    """Return the matrix ready for right-hand sides; arguments and errors: :class:`Factorization`."""
    return Factorization(a, precision)


def solve(a: Any, b: Any, *, precision: str | Precision = "auto", full: bool = False) -> Any:
    """Solve A x = b with the backward error of LAPACK's double precision.

    The matrix is factorized in a narrow format and the solution refined with residuals in float64, until
    max |b - A x| <= sqrt(n) max |x| |A| 2^-53 in infinity norms; where that is not reached the next wider
    format is taken, and double precision in the end.

    Args:
        a: (n, n), or (..., n, n) for many systems.
        b: (n,) or (n, k); for many systems (..., n, k).
        precision: ``auto`` or a name of :data:`PRECISIONS`.
        full: return a :class:`Result` instead of the solution; for one system.

    Returns:
        x of b's shape and family.

    Raises:
        ArgumentError: shapes that do not fit, or no such precision.
        DataError: NaN or infinity in the input, or a singular matrix.

    >>> import numpy as np
    >>> solve(np.array([[2.0, 1.0], [1.0, 3.0]]), np.array([3.0, 5.0]))
    array([0.8, 1.4])
    """
    if getattr(a, "ndim", 2) > 2:
        if full:
            raise ArgumentError("full=True describes one system; solve many one by one for that")
        return _many(a, b, precision)
    found = Factorization(a, precision).solve(b)
    return found if full else found.x


def _many(a: Any, b: Any, precision: str | Precision) -> Any:
    front = tuple(a.shape[:-2])
    if tuple(b.shape[: len(front)]) != front or b.ndim != a.ndim:
        raise ArgumentError(
            f"b has the shape {tuple(b.shape)}; expected {(*front, a.shape[-1], 'k')} for an A of"
            f" {tuple(a.shape)}"
        )
    systems = a.reshape(-1, *a.shape[-2:])
    sides = b.reshape(-1, *b.shape[-2:])
    found = [Factorization(one, precision).solve(side).x for one, side in zip(systems, sides, strict=True)]
    stacked = np.stack(found) if isinstance(b, np.ndarray) else torch.stack(found)
    return stacked.reshape(b.shape)


def _chain(precision: str | Precision, n: int) -> list[Precision]:
    """Return the precisions to try, the last one double."""
    last = read("fp64")
    if precision != "auto":
        one = read(precision)
        return [one] if one.factor == "fp64" else [one, last]
    if n < SMALL:
        return [last]
    return [read("fp32"), last]


def _tensor(x: Any, name: str) -> torch.Tensor:
    """Return x in double precision, refusing what no system can hold."""
    tensor = torch.from_numpy(np.ascontiguousarray(x)) if isinstance(x, np.ndarray) else x
    if not isinstance(tensor, torch.Tensor) or not (tensor.is_floating_point() or tensor.is_complex()):
        kind = getattr(x, "dtype", type(x).__name__)
        raise ArgumentError(f"{name} is {kind}; expected a NumPy array or a torch tensor of floats")
    wide = tensor.detach().cpu().to(torch.complex128 if tensor.is_complex() else torch.float64)
    if not bool(torch.isfinite(wide.abs()).all()):
        raise DataError(f"{name} holds NaN or infinity; remove them first")
    return wide


def _backward_error(a: torch.Tensor, x: torch.Tensor, b: torch.Tensor) -> float:
    """Return the normwise backward error (Rigal and Gaches, 1967)."""
    if x.numel() == 0:
        return 0.0
    scale = a.abs().sum(1).max() * x.abs().amax(0) + b.abs().amax(0)
    size = (b - a @ x).abs().amax(0)
    return float(torch.where(scale > 0, size / scale, 0.0).max())


def _condition(a: torch.Tensor, factors: lu.Factors) -> float:
    """Return |A| |A^-1 v| for the signs v that a solve with ones suggests: a lower bound, often close."""
    if len(a) == 0:
        return math.nan
    ones = torch.ones(len(a), 1, dtype=a.dtype)
    y = factors.solve(ones)
    signs = torch.where(y.real >= 0, 1.0, -1.0).to(a.dtype)
    inverse = max(float(y.abs().max()), float(factors.solve(signs).abs().max()))
    return float(a.abs().sum(1).max()) * inverse
