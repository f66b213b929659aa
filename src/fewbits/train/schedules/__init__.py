"""What changes a recipe's formats while a model trains."""

from __future__ import annotations

from torch import nn

from fewbits.recipes import Recipe
from fewbits.train.schedules.assigned import Assigned
from fewbits.train.schedules.muppet import Muppet
from fewbits.train.schedules.schedule import Schedule
from fewbits.train.schedules.warm_up import WarmUp

__all__ = ["Assigned", "Muppet", "Schedule", "WarmUp", "schedule"]

_KINDS = {"": Schedule, "warm-up": WarmUp, "muppet": Muppet, "assigned": Assigned}


def schedule(model: nn.Module, recipe: Recipe, steps: int) -> Schedule:
    """Return the schedule that ``recipe`` names for a prepared model that trains for ``steps`` steps.

    Call its ``after_backward`` when gradients are there and ``after_step`` after each update.
    """
    return _KINDS[recipe.schedule](model, recipe, steps)
