"""What changes a recipe's formats while a model trains."""

from __future__ import annotations

from torch import nn

from fewbits.recipes import Recipe
from fewbits.recipes import recipe as read
from fewbits.recipes.step_checks import note_schedule
from fewbits.train.schedules.assigned import Assigned
from fewbits.train.schedules.muppet import Muppet
from fewbits.train.schedules.schedule import Schedule
from fewbits.train.schedules.warm_up import WarmUp

__all__ = ["Assigned", "Muppet", "Schedule", "WarmUp", "schedule"]

_KINDS = {"": Schedule, "warm_up": WarmUp, "muppet": Muppet, "assigned": Assigned}


def schedule(model: nn.Module, recipe: str | Recipe, steps: int) -> Schedule:
    """Return what changes the formats of a prepared model while it trains.

    Keep it, and call its ``after_backward`` when gradients are there and ``after_step`` after each update.

    Args:
        model: prepared with the recipe.
        recipe: a recipe or its text.
        steps: for how many the model trains.

    Raises:
        ArgumentError: no such recipe.
    """
    chosen = read(recipe)
    result = _KINDS[chosen.schedule](model, chosen, steps)
    note_schedule(model, result)
    return result
