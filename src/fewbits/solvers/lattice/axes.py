"""What is given for each of the axes T, Z, Y and X, as plain numbers."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import torch

from fewbits.solvers.operators.vectors import real_number
from fewbits.tensor.inputs import is_count

Four = tuple[int, int, int, int]


def four_counts(given: object) -> Four | None:
    """Return four whole numbers above zero; None if this is something else."""
    return _four(given, is_count)


def four_signs(given: object) -> Four | None:
    """Return four numbers that are 1 or -1; None if this is something else."""
    return _four(given, lambda value: real_number(value) in (1, -1))


def _four(given: object, fits: Callable[[object], bool]) -> Four | None:
    values: object = given.tolist() if isinstance(given, (np.ndarray, torch.Tensor)) else given
    if not isinstance(values, Sequence) or isinstance(values, str) or len(values) != 4:
        return None
    if not all(fits(value) for value in values):
        return None
    t, z, y, x = (int(value) for value in values)
    return t, z, y, x
