"""Train in FP32 first, then by the recipe (Lu et al., posit training, 2019, section 3)."""

from __future__ import annotations

from torch import nn

from fewbits.recipes import Recipe
from fewbits.train.schedules.schedule import Schedule

PART = 10  # one step in so many; the paper takes 1 to 5 epochs


class WarmUp(Schedule):
    """No operand is rounded in the first tenth of the steps."""

    def __init__(self, model: nn.Module, recipe: Recipe, steps: int) -> None:
        super().__init__(model, recipe, steps)
        self.plain = recipe.extended(weight=None, activation=None, gradient=None)
        self.apply()

    def apply(self) -> None:
        """Give each layer the recipe of the current step."""
        for precision in self.precision.values():
            precision.recipe = self.plain if self.step < self.steps // PART else self.recipe
