"""The product of compressed rows by operations of torch; kernels/reference/sparse/rows.py defines it."""

from __future__ import annotations

import numpy as np
import torch

from fewbits.kernels.bits.sparse_rows import SLICE, SparseRows


class RowProduct:
    """The product with one matrix, whose values and columns are copied to a device once.

    Entries of a row are added one after the other, as the definition says, in all rows at once: there are as
    many steps as the longest row has entries.
    """

    def __init__(self, a: SparseRows, device: torch.device | str) -> None:
        starts = a.start[a.first]  # where the entries of each slice begin
        lengths = np.diff(starts)
        order = np.argsort(-lengths, kind="stable")  # so that slices with entries left are the first ones
        columns = np.repeat(a.base, np.diff(a.start))[:, None] + a.columns.astype(np.int64)
        lane_of = np.empty(a.rows, np.int64)
        lanes = np.argsort(order)[:, None] * SLICE + np.arange(SLICE)
        there = a.place >= 0
        lane_of[a.place[there]] = lanes.reshape(-1)[there]
        self._values, self._columns, self._starts, self._lane_of, self._unit = (
            torch.from_numpy(part).to(device)
            for part in (
                np.ascontiguousarray(a.values),
                columns,
                starts[:-1][order],
                lane_of,
                a.unit.reshape(-1, SLICE)[order],
            )
        )
        # How many slices have an entry after so many.
        longest = int(lengths.max(initial=0))
        self._active = [int((lengths > step).sum()) for step in range(longest)]

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """Return A x in float32 for a float32 x, (columns,), on the device of the matrix."""
        # By way of float64, which holds the product of two float32: no compiler can join the rounding of the
        # product to that of the sum.
        products = (self._values.double() * x[self._columns].double()).float()
        total = x.new_zeros(self._unit.shape)
        for step, active in enumerate(self._active):
            total = torch.cat((total[:active] + products[self._starts[:active] + step], total[active:]))
        return (total * self._unit).reshape(-1)[self._lane_of]
