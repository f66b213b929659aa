"""A sparse matrix whose rows are distributed over the processes of a group."""

from __future__ import annotations

import copy
import math

import numpy as np
import scipy.sparse
import torch
import torch.distributed as dist
from numpy.typing import NDArray

from fewbits.errors import ArgumentError, DataError, FewbitsError
from fewbits.formats import Format
from fewbits.solvers.operators.agreement import agreeing
from fewbits.solvers.operators.matrices import Matrix, SparseMatrix, in_double, long_residual, rounded_rows
from fewbits.solvers.operators.operator import Apply, Operator
from fewbits.solvers.operators.vectors import from_reals, largest, reals

Indices = NDArray[np.integer]


class Partitioned(Operator):
    """A square matrix of which each process of the group holds consecutive rows, in order of rank.

    A product fetches the values that it needs from other processes (its halo) and multiplies locally. Dot
    products are summed over all processes, so that all take the same decisions. Every process calls the
    solver with its own part of b, and gets its own part of x.

    Args:
        rows: (rows of this process, n) SciPy sparse matrix, real or complex; the ranks hold consecutive rows.
        group: a process group of torch.distributed; None for the default group of all processes.

    Raises:
        ArgumentError: there is no process group, or the rows together are not a square matrix.
        DataError: NaN or infinity. If one process raises, all do.
    """

    def __init__(self, rows: SparseMatrix, group: dist.ProcessGroup | None = None) -> None:
        if not dist.is_initialized():
            raise ArgumentError("there is no process group; call torch.distributed.init_process_group first")
        self.group = group
        local, refused = _checked(rows)
        mine = torch.tensor([local.shape[0], local.shape[1], refused is not None, local.dtype.kind == "c"])
        gathered = [torch.zeros(4, dtype=torch.int64) for _ in range(dist.get_world_size(group))]
        dist.all_gather(gathered, mine.long(), group=group)
        heights, widths, failures, kinds = torch.stack(gathered).T.tolist()
        ends = np.cumsum(heights)
        if refused is not None:
            raise refused
        if any(failures):
            raise DataError(f"process {failures.index(1)} refused its rows; its message says why")
        if any(width != ends[-1] for width in widths):
            raise ArgumentError(
                f"rows have {widths} columns in the processes, which hold {ends[-1]} rows together;"
                " expected a square matrix"
            )
        self.complex = any(kinds)
        local = local.astype(np.complex128) if self.complex else local
        self.n, self.unknowns = local.shape[0], int(ends[-1])
        self.start = int(ends[dist.get_rank(group)]) - self.n
        self._halo = _Halo(local, self.start, ends, group)
        columns = self._halo.places(local.indices, self.start, self.n)
        width = self.n + len(self._halo.wanted)
        self._rows = scipy.sparse.csr_array((local.data, columns, local.indptr), shape=(self.n, width))

    @classmethod
    def split(cls, A: SparseMatrix, group: dist.ProcessGroup | None = None) -> Partitioned:
        """Return this process's share of a full matrix, rows ``[start, start + n)``; shares are even."""
        if not dist.is_initialized():
            raise ArgumentError("there is no process group; call torch.distributed.init_process_group first")
        if not hasattr(A, "tocsr"):
            return cls(A, group)  # which refuses it in all processes
        rank, ranks, n = dist.get_rank(group), dist.get_world_size(group), A.shape[0]
        rows = in_double(A, copy=False).tocsr()  # of which a part is copied
        return cls(rows[n * rank // ranks : n * (rank + 1) // ranks], group)

    def exact(self, v: torch.Tensor) -> torch.Tensor:
        """Return this process's part of A v."""
        return torch.from_numpy(self._rows @ self._halo.beside(v).numpy())

    def residual(self, b: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        """Return this process's part of b - A x."""
        return long_residual(self._rows, b, self._halo.beside(x))

    def scaled(self, exponent: int) -> Partitioned:
        """Return A 2^exponent; all processes call this together.

        Raises:
            DataError: a value of one of them would lose digits.
        """
        scaled = copy.copy(self)
        with agreeing(self, "A: it holds values more than 1e300 apart"):
            scaled._rows = Matrix(self._rows).scaled(exponent).a
        return scaled

    def magnitude(self) -> float:
        """Return the largest magnitude among the values of all processes."""
        return self.peak(torch.from_numpy(self._rows.data))

    def peak(self, v: torch.Tensor) -> float:
        """Return the largest magnitude in v over all processes, infinity where there is NaN."""
        size = largest(v)
        # A maximum over processes may drop NaN, as that of gloo does.
        peak = torch.tensor(math.inf if math.isnan(size) else size, dtype=torch.float64)
        dist.all_reduce(peak, dist.ReduceOp.MAX, group=self.group)
        return float(peak)

    def rounded(self, format: Format | None) -> Apply:
        """Return the product in the narrow format; values of other processes arrive in float32."""
        low = rounded_rows(self._rows, format)
        return lambda v: torch.from_numpy(low @ self._halo.beside(v).numpy())

    def total(self, sums: torch.Tensor) -> torch.Tensor:
        """Return the sum over the processes."""
        totals = reals(sums.reshape(-1)).clone()
        dist.all_reduce(totals, group=self.group)
        return from_reals(totals, pairs=sums.is_complex()).view(sums.shape)


def _checked(rows: SparseMatrix) -> tuple[scipy.sparse.csr_array, FewbitsError | None]:
    """Return the rows in double precision, and the error to raise if they are unusable."""
    if not hasattr(rows, "tocsr"):
        refused = ArgumentError(f"rows are a {type(rows).__name__}; expected a SciPy sparse matrix")
        return scipy.sparse.csr_array((0, 0)), refused
    try:
        return Matrix(rows).a, None
    except FewbitsError as error:
        return scipy.sparse.csr_array((0, 0)), error


class _Halo:
    """The values that this process needs from each other process, and those that it sends to each."""

    def __init__(
        self, rows: scipy.sparse.csr_array, start: int, ends: Indices, group: dist.ProcessGroup | None
    ) -> None:
        self.group, rank, ranks = group, dist.get_rank(group), len(ends)
        outside = (rows.indices < start) | (rows.indices >= start + rows.shape[0])
        self.wanted = np.unique(rows.indices[outside])
        owner = np.searchsorted(ends, self.wanted, side="right")
        counts = torch.zeros(ranks, ranks, dtype=torch.int64)  # [receiver, sender]
        counts[rank] = torch.from_numpy(np.bincount(owner, minlength=ranks))
        dist.all_reduce(counts, group=group)
        self.parts = [int(c) for c in counts[rank]]  # values received from each rank
        asked = torch.split(torch.from_numpy(self.wanted.astype(np.int64)), self.parts)
        given = [torch.zeros(int(c), dtype=torch.int64) for c in counts[:, rank]]
        self._exchange(list(asked), given)
        self.given = [indices - start for indices in given]

    def places(self, columns: Indices, start: int, n: int) -> Indices:
        """Return the positions of those columns in the result of :meth:`beside`."""
        beyond = n + np.searchsorted(self.wanted, columns)
        return np.where((columns >= start) & (columns < start + n), columns - start, beyond)

    def beside(self, v: torch.Tensor) -> torch.Tensor:
        """Return the values of this process followed by those received from others."""
        others = [torch.empty(c, dtype=v.dtype) for c in self.parts]
        received = [torch.view_as_real(values) if v.is_complex() else values for values in others]
        self._exchange([reals(v[indices]) for indices in self.given], received)
        return torch.cat([v, *others])

    def _exchange(self, sent: list[torch.Tensor], received: list[torch.Tensor]) -> None:
        """Send each process its part, and fill ``received``."""
        steps = []
        for rank, (out, into) in enumerate(zip(sent, received, strict=True)):
            peer = rank if self.group is None else dist.get_global_rank(self.group, rank)
            if out.numel():
                steps.append(dist.P2POp(dist.isend, out, peer, self.group))
            if into.numel():
                steps.append(dist.P2POp(dist.irecv, into, peer, self.group))
        for work in dist.batch_isend_irecv(steps) if steps else ():
            work.wait()
