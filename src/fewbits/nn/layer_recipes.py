"""Recipes of single layers beside the model's."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from fewbits.errors import ArgumentError
from fewbits.names import check_fits, within
from fewbits.recipes import Recipe
from fewbits.recipes import recipe as read

# What lies between steps belongs to the optimizer, which has one recipe.
_STORED = (
    "parameter",
    "master",
    "has_master",
    "update",
    "held_gradient",
    "first_moment",
    "second_moment",
    "scaling",
)
_PLAIN = Recipe("fp32")


def assigned(
    chosen: Recipe, recipes: Mapping[str, str | Recipe], names: Sequence[str], layers: Sequence[str]
) -> dict[str, Recipe]:
    """Return the recipe of each of ``layers``: that of the last pattern that fits its name, or ``chosen``.

    What is stored between steps, and the loss scale, are those of ``chosen`` everywhere.

    Args:
        chosen: the model's recipe.
        recipes: the others, by patterns of module names.
        names: of all modules, the model itself first.
        layers: names of those that are changed.

    Raises:
        ArgumentError: no such recipe, one that single layers cannot have, or a pattern without effect.
    """
    check_fits("recipes", recipes, names)
    given = {pattern: _of_layer(pattern, read(one), chosen) for pattern, one in recipes.items()}
    found, used = {}, set()
    for name in layers:
        fitting = [pattern for pattern in given if within(name, [pattern])]
        found[name] = given[fitting[-1]] if fitting else chosen
        used.update(fitting[-1:])
    idle = next((pattern for pattern in given if pattern not in used), None)
    if idle is not None:
        raise ArgumentError(
            f"recipes={{{idle!r}: ...}} changes nothing: no layer of that name multiplies, all are excluded,"
            " or a later pattern fits the same ones; leave it out"
        )
    return found


def _of_layer(pattern: str, given: Recipe, chosen: Recipe) -> Recipe:
    what = f"recipes={{{pattern!r}: {given.name!r}}}"
    for one in (given, chosen):
        whole = "autocast" if one.autocast else "a schedule" if one.schedule else None
        if whole is not None:
            raise ArgumentError(
                f"{what}: {one.name} has {whole}, which is the whole model's; expected recipes without"
            )
    for role in _STORED:
        own = getattr(given, role)
        if own not in (getattr(_PLAIN, role), getattr(chosen, role)):
            raise ArgumentError(
                f"{what} has {role}={own}, and the model's {chosen.name} has {getattr(chosen, role)}: what is"
                " stored, and the loss scale, are the same for all layers; give a recipe that has none, or"
                f" prepare the model with {role}={own}"
            )
    return given.extended(**{role: getattr(chosen, role) for role in _STORED})
