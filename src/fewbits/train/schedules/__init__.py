"""What changes a recipe's formats while a model trains."""

from __future__ import annotations

from dataclasses import replace

from torch import nn

from fewbits.errors import ArgumentError
from fewbits.recipes import Recipe
from fewbits.recipes import recipe as read
from fewbits.recipes.step_checks import note_schedule, prepared_parts
from fewbits.tensor.inputs import is_count
from fewbits.train.schedules.assigned import Assigned
from fewbits.train.schedules.muppet import Muppet
from fewbits.train.schedules.schedule import Schedule
from fewbits.train.schedules.warm_up import WarmUp

__all__ = ["Assigned", "Muppet", "Schedule", "WarmUp", "schedule"]

_KINDS = {"": Schedule, "warm_up": WarmUp, "muppet": Muppet, "assigned": Assigned}


def schedule(model: nn.Module, recipe: str | Recipe, steps: int) -> Schedule:
    """Return what changes the formats of a prepared model while it trains.

    Keep it, and call its ``after_backward`` when gradients are there, averaged where several processes have
    parts of a batch, and its ``after_step`` after each update.

    Args:
        model: prepared with the recipe, or one around it.
        recipe: a recipe or its text.
        steps: for how many the model trains, at least one.

    Raises:
        ArgumentError: no such recipe, a model that was not prepared, or with another recipe where either
            changes formats, or steps that are no whole number above 0; or ``assigned`` on several
            processes, where each would choose formats by its own part of a batch.
    """
    chosen = read(recipe)
    if not is_count(steps):
        raise ArgumentError(f"steps={steps!r}; expected for how many the model trains, at least 1")
    _check_prepared(model, chosen)
    result = _KINDS[chosen.schedule](model, chosen, steps)
    note_schedule(model, result)
    return result


def _check_prepared(model: nn.Module, chosen: Recipe) -> None:
    """Raise unless all that was prepared follows the recipe, where formats change."""
    own = {name: prepared.recipe for name, prepared in prepared_parts(model)}
    if not own:
        raise ArgumentError(
            f"{type(model).__name__} was not prepared; call fewbits.nn.prepare(model, {chosen.name!r}) first"
        )
    for name, recipe in own.items():
        if (chosen.schedule or recipe.schedule) and _unnamed(recipe) != _unnamed(chosen):
            raise ArgumentError(
                f"a schedule of recipe {chosen.name!r}, and {name or 'the model'} was prepared with"
                f" {recipe.name!r}; write schedule(model, {recipe.name!r}, steps), of the part alone that"
                " follows it"
            )


def _unnamed(recipe: Recipe) -> Recipe:
    """Return what a recipe does, whatever it is called."""
    return replace(recipe, name="", paper="")
