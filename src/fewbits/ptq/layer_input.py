"""The input of a layer among the arguments of a call, by place or by name."""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor

Arguments = tuple[tuple[Tensor, ...], dict[str, Tensor]]
"""Those by place, and those by name, as a forward pre-hook with keyword arguments takes and returns them."""


def with_input(
    inputs: tuple[Tensor, ...], named: dict[str, Tensor], change: Callable[[Tensor], Tensor]
) -> Arguments:
    """Return the arguments of a layer with its input changed: the first one, or that called ``input``."""
    if inputs:
        return (change(inputs[0]), *inputs[1:]), named
    name = "input" if "input" in named else next(iter(named))
    return (), {**named, name: change(named[name])}
