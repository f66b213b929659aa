"""The schedule that changes nothing, and the base of those that do."""

from __future__ import annotations

from typing import cast

import torch
from torch import nn

from fewbits.errors import ArgumentError
from fewbits.nn import LayerPrecision
from fewbits.recipes import Recipe
from fewbits.typing import StateDict


class Schedule:
    """Keeps every layer at the recipe it was prepared with."""

    def __init__(self, model: nn.Module, recipe: Recipe, steps: int) -> None:
        self.model, self.recipe, self.steps = model, recipe, steps
        self.precision = {
            name: m.precision
            for name, m in model.named_modules()
            if isinstance(getattr(m, "precision", None), LayerPrecision)
        }
        self.step = 0

    def after_backward(self) -> None:
        """Look at the gradients before they are used."""

    def after_step(self) -> None:
        """Count an update, and give each layer the recipe of the next step."""
        self.step += 1
        self.apply()

    def apply(self) -> None:
        """Give each layer the recipe of the current step."""

    def state_dict(self) -> StateDict:
        """Return what :meth:`load_state_dict` takes; JSON can hold it."""
        return {"step": self.step}

    def load_state_dict(self, state_dict: StateDict) -> None:
        """Restore what :meth:`state_dict` returned.

        Raises:
            ArgumentError: the state is one of another schedule, or of other layers.
        """
        self._check(state_dict)
        self._restore(state_dict)
        self.apply()

    def _check(self, state_dict: StateDict) -> None:
        """Raise unless a state is one of this kind of schedule."""
        if state_dict.keys() != self.state_dict().keys():
            raise ArgumentError(
                f"a state with {', '.join(map(repr, state_dict)) or 'nothing'}; expected one that a"
                f" {type(self).__name__} saved, with {', '.join(map(repr, self.state_dict()))}: load it into"
                " the schedule of the recipe that it is of, or begin without it"
            )

    def _restore(self, state_dict: StateDict) -> None:
        """Take over a state that was checked."""
        self.step = cast(int, state_dict["step"])

    def tensors(self) -> dict[str, torch.Tensor]:
        """Return what :meth:`load_tensors` takes: the part of the state that is tensors, by name."""
        return {}

    def load_tensors(self, tensors: dict[str, torch.Tensor]) -> None:
        """Restore what :meth:`tensors` returned."""
