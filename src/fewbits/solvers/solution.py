"""The result of every solver: a solution with its evidence."""

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

# Meaning of negative codes, numbered as in cuSOLVER's iterative refinement and LAPACK's DSGESV.
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
    """A solution with its evidence; NumPy and PyTorch treat it as the array ``x``.

    ``numpy.asarray(solution)``, ``A @ solution`` with an array or a tensor A, and ``torch.asarray(solution)``
    use ``x``. Where x has a gradient, take ``solution.x``: :func:`torch.asarray` would lose it, and refuses.
    A number that a solver does not compute is nan.

    For several right-hand sides, (n, k), the numbers cover all columns: residuals and errors are the largest
    of any column, ``converged`` says whether all columns converged, and the iterations of a Krylov solver are
    summed.

    Attributes:
        x: (n,) or (n, k), float64 or complex128, in the shape of b and an array or tensor like it. A Krylov
            solver returns its x with the smallest true residual, :func:`lsqr` that with the smallest |A^H r|.
        converged: whether x is as accurate as requested: for a Krylov solver, a true residual of at most
            max(rtol |b|, atol); for a dense system, the accuracy of double precision.
        residual: |b - A x| / |b|, 2-norms, of the x returned; computed in more than double precision if the
            values of A are known.
        iterations: for a Krylov solver, the sum over all precisions; each takes one product with A, or two in
            bicgstab and lsqr. For a dense system, the steps of refinement in the stage that converged.
        stages: every attempt, in order, with its precision, time, residuals and the reason why it was left;
            the last one gave x. Empty if there was nothing to compute.
        history: for a Krylov solver, the recurrence's residual divided by |b| after each iteration of all
            stages; for a dense system, the componentwise backward error after each step of the last stage.
        backward_error: of a dense system, normwise, max |b - A x| / (|A| max |x| + max |b|), infinity norms
            (Rigal and Gaches, 1967); of :func:`lstsq` the smaller one of |A^H r| / (|A| |r|) and
            |r| / (|A| |x| + |b|), Frobenius and 2-norms (Stewart, Research, Development, and LINPACK, 1977).
        componentwise_error: of a dense system, max over i of |b - A x|_i / (|A| |x| + |b|)_i (Oettli and
            Prager, 1964).
        forward_error: of a dense system, an estimate of max |x - x'| / max |x|, where x' is the exact
            solution, from the residual and the factors, as in LAPACK's GERFS: from one on no digit is
            certain, and x' may be far smaller than x. Infinity if x is not a solution.
        condition: of a dense system, an estimate of the condition number in the infinity norm, of A with
            rows and columns equilibrated if their largest entries are more than 16 times apart or beyond
            2^60; infinity if it is too large to be estimated. For :func:`lstsq`, a lower bound from R.
        optimality: for least squares, |A^H r| / (|A| |r|); :func:`lsqr` uses a lower bound on |A|.
        claimed: for a Krylov solver, the residual divided by |b| according to the recurrence.
        reliable_updates: how often a Krylov solver recomputed the residual in double precision.
        columns: for several right-hand sides, the Solution of each one; empty for a single one.
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
        """Return the same evidence with another x and without the columns."""
        fields = {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}
        return Solution(**{**fields, "x": x, "columns": ()})

    def __array__(self, dtype: npt.DTypeLike | None = None, copy: bool | None = None) -> NumpyArray:
        x = np.asarray(torch.as_tensor(self.x).detach().cpu())
        made = np.array(x, dtype) if copy else np.asarray(x, dtype)
        if copy is False and not np.shares_memory(made, x) and x.size:
            raise ValueError(f"copy=False: x is {x.dtype}, and {made.dtype} takes a copy")  # as NumPy does
        return made

    def __dlpack__(self, *, stream: int | None = None) -> object:
        """Return x for DLPack, by which :func:`torch.asarray` reads it.

        Raises:
            ArgumentError: x has a gradient, which DLPack does not carry.
        """
        x = torch.as_tensor(self.x)
        if x.requires_grad:
            raise ArgumentError(
                "x has a gradient, which torch.asarray of a Solution would lose; take solution.x, or"
                " solution.x.detach()"
            )
        return x.__dlpack__(stream=stream)

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
    """Return the x of a solution as a tensor, also within lists; anything else unchanged."""
    if isinstance(value, Solution):
        return torch.as_tensor(value.x)
    return type(value)(map(_tensor, value)) if isinstance(value, (list, tuple)) else value


def of_family(x: torch.Tensor, like: Array) -> Array:
    """Return x as a tensor on the device of ``like`` if that is a tensor, else as an array.

    Raises:
        ArgumentError: x has a gradient, which a NumPy array cannot carry.
    """
    if isinstance(like, torch.Tensor):
        return x.to(like.device)
    if x.requires_grad:
        raise ArgumentError(
            "A requires a gradient, but b is not a tensor, so x would be a NumPy array without one;"
            " pass b as a torch tensor, or A.detach()"
        )
    return x.numpy()
