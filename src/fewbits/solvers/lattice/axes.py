"""What is given for each of the axes T, Z, Y and X, as plain numbers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from fewbits.solvers.operators.vectors import real_number
from fewbits.tensor.inputs import is_count

Four = tuple[int, int, int, int]


def four_counts(given: object) -> Four | None:
    """Return four whole numbers above zero; None if this is something else."""
    values = _values(given)
    if len(values) != 4 or not all(is_count(value) for value in values):
        return None
    t, z, y, x = (int(value) for value in values)
    return t, z, y, x


def four_signs(given: object) -> Four | None:
    """Return four numbers that are 1 or -1; None if this is something else."""
    values = _values(given)
    if len(values) != 4 or not all(real_number(value) in (1, -1) for value in values):
        return None
    t, z, y, x = (int(value) for value in values)
    return t, z, y, x


def _values(given: object) -> Sequence[Any]:
    values: object = given.tolist() if isinstance(given, (np.ndarray, torch.Tensor)) else given
    return values if isinstance(values, Sequence) and not isinstance(values, str) else ()
