"""New memory on the CPU for results."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from fewbits.kernels.arrays.lent import ask_for_huge_pages

_LARGE = 1 << 22  # bytes, from which on NumPy's own arrays ask too


def empty(shape: Sequence[int], dtype: torch.dtype) -> torch.Tensor:
    """Return an uninitialized tensor in C order, in huge pages if it is large and the system has them.

    Small pages, which PyTorch's own tensors have, take up to ten times as long to get as to write.
    """
    return in_huge_pages(torch.empty(shape, dtype=dtype, device="cpu"))  # whatever torch takes by default


def in_huge_pages(y: torch.Tensor) -> torch.Tensor:
    """Return ``y``, in memory that nobody has used yet: it gets huge pages if it is large."""
    if y.nbytes >= _LARGE:
        ask_for_huge_pages(y.data_ptr(), y.nbytes)
    return y
