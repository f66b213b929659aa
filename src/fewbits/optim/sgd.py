"""Stochastic gradient descent with momentum."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch.optim.optimizer import ParamsT

from fewbits.errors import ArgumentError
from fewbits.optim.optimizer import Optimizer, checked
from fewbits.optim.parameter_state import Options, ParameterState
from fewbits.recipes import Recipe


class SGD(Optimizer):
    """Plain or heavy-ball gradient descent; with the recipe ``fp32`` it equals :class:`torch.optim.SGD`.

    Args:
        params: parameters, or groups of them with options of their own.
        lr: learning rate.
        momentum: share of the last update that is kept; the recipe's ``first_moment`` says how.
        weight_decay: added to the gradient, times the weights.
        nesterov: take the gradient one step ahead.
        recipe: a recipe or its text.

    Raises:
        ArgumentError: an option out of its range, or no such recipe.
    """

    def __init__(
        self,
        params: ParamsT,
        lr: float,
        *,
        momentum: float = 0.0,
        weight_decay: float = 0.0,
        nesterov: bool = False,
        recipe: str | Recipe = "fp32",
    ) -> None:
        defaults = {"lr": lr, "momentum": momentum, "weight_decay": weight_decay, "nesterov": nesterov}
        super().__init__(params, defaults, recipe)

    def _check_ranges(self, options: Mapping[str, Any]) -> None:
        """Raise where an option is out of its range."""
        for name in ("lr", "momentum", "weight_decay"):
            checked(name, options[name])
        if options["nesterov"] and not options["momentum"]:
            raise ArgumentError("nesterov=True with momentum=0; expected a momentum above 0")

    def update(
        self, values: torch.Tensor, gradient: torch.Tensor, state: ParameterState, group: Options
    ) -> torch.Tensor:
        """Return the update that is added to ``values``; see :meth:`Optimizer.update`."""
        if group["weight_decay"]:
            gradient = gradient.add(values, alpha=group["weight_decay"])
        if group["momentum"]:
            moved = self.load(state, "first_moment", values).mul_(group["momentum"]).add_(gradient)
            gradient = gradient.add(moved, alpha=group["momentum"]) if group["nesterov"] else moved
            self.keep(state, "first_moment", moved)
        return gradient.mul(-group["lr"])
