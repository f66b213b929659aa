"""What processes that share an operator tell each other before they compute."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch

from fewbits.errors import ArgumentError, DataError, FewbitsError
from fewbits.solvers.operators.operator import Operator


@contextmanager
def agreeing(a: object, what: str) -> Iterator[None]:
    """Raise in all processes of an operator if the body raises in one: none waits for one that left.

    Raises:
        DataError: another process refused its part.
    """
    refused: FewbitsError | None = None
    try:
        yield
    except FewbitsError as error:
        refused = error
    told = isinstance(a, Operator) and float(a.total(torch.tensor(float(refused is not None)))) > 0
    if refused is not None:
        raise refused
    if told:
        raise DataError(f"another process refused its part of {what}; its message says why")


def in_one(a: Operator, value: bool) -> bool:
    """Return whether it is so in any process."""
    return a.peak(torch.tensor(float(value), dtype=torch.float64)) > 0


def check_columns(a: Operator, count: int, name: str) -> None:
    """Raise ArgumentError in all processes if they hold different numbers of columns."""
    most = a.peak(torch.tensor(float(count), dtype=torch.float64))
    short = a.peak(torch.tensor(most - count, dtype=torch.float64))
    if short > 0:
        raise ArgumentError(
            f"{name}: {most - short:g} columns in one process and {most:g} in another; expected"
            " as many in all"
        )
