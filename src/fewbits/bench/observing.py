"""What sees in which formats a step computes."""

from __future__ import annotations

from importlib import import_module
from typing import Protocol, cast

from torch import nn

from fewbits.records import RanPrecision


class Observer(Protocol):
    """Sees the operands of the products that run within it."""

    def __enter__(self) -> object:
        """Begin to look."""

    def __exit__(self, *error: object) -> None:
        """Look no longer."""

    def found(self, communication: str | None = None) -> RanPrecision:
        """Return the narrowest formats that were seen."""


def observer_of(model: nn.Module) -> Observer:
    """Return an observer of the products of a model."""
    return cast(Observer, import_module("fewbits.train.precision").PrecisionObserver(model))
