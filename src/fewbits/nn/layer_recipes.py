"""Recipes of single layers beside the model's."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from fewbits.errors import ArgumentError
from fewbits.names import check_fits, listed, with_shared, within
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
    chosen: Recipe, recipes: Mapping[str, str | Recipe], names: Mapping[str, object], layers: Sequence[str]
) -> dict[str, Recipe]:
    """Return the recipe of each of ``layers``: that of the last pattern that fits its name, or ``chosen``.

    What is stored between steps, and the loss scale, are those of ``chosen`` everywhere.

    Args:
        chosen: the model's recipe.
        recipes: the others, by patterns of module names.
        names: all names of modules, with what they name; the model itself first.
        layers: names of those that are changed.

    Raises:
        ArgumentError: no such recipe, one that single layers cannot have, or a pattern without effect.
    """
    given: object = recipes  # whatever a caller without types passes
    if not isinstance(given, Mapping):
        raise ArgumentError(
            f"recipes={given!r}; expected recipes by patterns of layers, as {{'lm_head': 'mxfp8'}}"
        )
    check_fits("recipes", listed("recipes", recipes), list(names))
    by_pattern = {pattern: _of_layer(pattern, read(text), chosen) for pattern, text in recipes.items()}
    globs = {pattern: with_shared([pattern], names.items()) for pattern in by_pattern}
    by_layer, used = {}, set()
    for name in layers:
        fitting = [pattern for pattern in by_pattern if within(name, globs[pattern])]
        by_layer[name] = by_pattern[fitting[-1]] if fitting else chosen
        used.update(fitting[-1:])
    idle = next((pattern for pattern in by_pattern if pattern not in used), None)
    if idle is not None:
        raise ArgumentError(
            f"recipes={{{idle!r}: ...}} changes nothing: no layer of that name multiplies, all are excluded,"
            " or a later pattern fits the same ones; leave it out"
        )
    return by_layer


def _of_layer(pattern: str, own: Recipe, chosen: Recipe) -> Recipe:
    argument = f"recipes={{{pattern!r}: {own.name!r}}}"
    for recipe in (own, chosen):
        feature = "autocast" if recipe.autocast else "a schedule" if recipe.schedule else None
        if feature is not None:
            raise ArgumentError(
                f"{argument}: {recipe.name} has {feature}, which is the whole model's; expected recipes"
                " without"
            )
    for role in _STORED:
        value = getattr(own, role)
        if value not in (getattr(_PLAIN, role), getattr(chosen, role)):
            raise ArgumentError(
                f"{argument} has {role}={value}, and the model's {chosen.name} has {getattr(chosen, role)}:"
                " what is stored, and the loss scale, are the same for all layers; give a recipe that has"
                f" none, or prepare the model with {role}={value}"
            )
    return own.extended(**{role: getattr(chosen, role) for role in _STORED})
