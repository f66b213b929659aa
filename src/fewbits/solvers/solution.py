"""What every solver of this package returns: a solution with its evidence."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import nan
from typing import Generic, TypeVar

import numpy as np
import numpy.typing as npt
import torch

from fewbits.errors import ArgumentError
from fewbits.records import Stage
from fewbits.typing import Array, NumpyArray

# What a code below zero says, numbered as in cuSOLVER's iterative refinement and LAPACK's DSGESV.
REASONS = {
    -1: "not worth trying",
    -2: "overflow in the narrow format",
    -3: "the factorization met a pivot that is zero, or not positive where it must be",
    -5: "overflow during refinement",
    -50: "refinement did not converge",
}


Other = TypeVar("Other", NumpyArray, torch.Tensor)


@dataclass(frozen=True, eq=False)
class Solution(Generic[Array]):
    """A solution with its evidence; it stands for ``x`` where NumPy or PyTorch expect an array.

    ``numpy.asarray(solution)``, ``A @ solution`` with an array or a tensor A, and ``torch.asarray(solution)``
    see ``x``. A number that a solver does not compute is nan.

    Of several right-hand sides, (n, k), the numbers are those of all columns together: the residuals and
    errors are those of the worst one, ``converged`` says whether all have, and of a Krylov solver the
    iterations are a sum.

    Attributes:
        x: (n,) or (n, k), float64 or complex128, of b's family and shape; a Krylov solver returns of all that
            it found the x with the least true residual.
        converged: whether x is as accurate as was asked: the true residual of a Krylov solver at most
            max(rtol |b|, atol); for a dense system as good as double precision has.
        residual: |b - A x| / |b|, 2-norms, of the x returned, in more than double precision where A's values
            are known.
        iterations: of a Krylov solver in all precisions, one product with A each, two in bicgstab and lsqr;
            of a dense one the steps of refinement in the stage that converged.
        stages: every attempt, in order, with its precision, time, residuals and the reason why it was left;
            the last one gave x. Empty where nothing had to be done.
        history: of a Krylov solver the recurrence's residual over |b| after each iteration, of all stages;
            of a dense one the componentwise backward error in the last stage, after each step.
        backward_error: of a dense system, normwise, max |b - A x| / (|A| max |x| + max |b|), infinity norms
            (Rigal and Gaches, 1967); of :func:`lstsq` the smaller one of |A^H r| / (|A| |r|) and
            |r| / (|A| |x| + |b|), Frobenius and 2-norms (Stewart, Research, Development, and LINPACK, 1977).
        componentwise_error: of a dense system, max over i of |b - A x|_i / (|A| |x| + |b|)_i (Oettli and
            Prager, 1964).
        forward_error: of a dense system, an estimate of max |x - x'| / max |x'|, where x' is the exact
            solution, from the residual and the factors, as in LAPACK's GERFS; infinity where x is no
            solution.
        condition: of a dense system, an estimate of the condition number in the infinity norm, of A with
            rows and columns equilibrated; infinity where it is so large that no estimate can be believed. Of
            :func:`lstsq` a lower bound from R.
        optimality: of least squares |A^H r| / (|A| |r|); of :func:`lsqr` with a lower bound of |A|.
        claimed: of a Krylov solver, the residual over |b| as the recurrence has it.
        reliable_updates: times that a Krylov solver computed the residual anew in double precision.
        columns: the solutions of several right-hand sides, each as if it were alone; empty for one.
    """

    x: Array
    converged: bool
    residual: float = nan
    iterations: int = 0
    stages: tuple[Stage, ...] = ()
    history: tuple[float, ...] = ()
    backward_error: float = nan
    componentwise_error: float = nan
    forward_error: float = nan
    condition: float = nan
    optimality: float = nan
    claimed: float = nan
    reliable_updates: int = 0
    columns: tuple[Solution[Array], ...] = ()

    @property
    def path(self) -> tuple[str, ...]:
        """The precisions tried, in order."""
        return tuple(dict.fromkeys(stage.precision for stage in self.stages))

    @property
    def fell_back(self) -> bool:
        """Whether a narrower precision was tried, and double precision gave the solution."""
        return len(self.stages) > 1 and self.stages[-1].precision in ("fp64", "double")

    def with_x(self, x: Other) -> Solution[Other]:
        """Return the same evidence with x in another shape or family; without the columns."""
        fields = {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}
        return Solution(**{**fields, "x": x, "columns": ()})

    def __array__(self, dtype: npt.DTypeLike | None = None, copy: bool | None = None) -> NumpyArray:
        x = np.asarray(torch.as_tensor(self.x).detach().cpu())
        return np.array(x, dtype) if copy else np.asarray(x, dtype)

    def __dlpack__(self, *, stream: int | None = None) -> object:
        return torch.as_tensor(self.x).detach().__dlpack__(stream=stream)

    def __dlpack_device__(self) -> tuple[int, int]:
        kind, place = torch.as_tensor(self.x).__dlpack_device__()
        return int(kind), place

    @classmethod
    def __torch_function__(
        cls,
        function: Callable[..., object],
        types: Sequence[type],
        args: Sequence[object] = (),
        kwargs: Mapping[str, object] | None = None,
    ) -> object:
        del types
        return function(*map(_tensor, args), **{name: _tensor(v) for name, v in (kwargs or {}).items()})


def _tensor(value: object) -> object:
    """Return the tensor that a solution stands for, also within lists; anything else as it is."""
    if isinstance(value, Solution):
        return torch.as_tensor(value.x)
    return type(value)(map(_tensor, value)) if isinstance(value, (list, tuple)) else value


def of_family(x: torch.Tensor, like: Array) -> Array:
    """Return x as a tensor on the device of ``like`` where that is one, and else as an array.

    Raises:
        ArgumentError: x has a gradient, which an array of NumPy cannot carry.
    """
    if isinstance(like, torch.Tensor):
        return x.to(like.device)
    if x.requires_grad:
        raise ArgumentError(
            "A has a gradient, and b is no tensor, so x would be an array, which has none; give b as a torch"
            " tensor, or A.detach()"
        )
    return x.numpy()
