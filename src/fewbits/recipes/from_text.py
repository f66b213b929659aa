"""Recipes as text: a name of the catalogue, or a name and what differs from it."""

from __future__ import annotations

from difflib import get_close_matches

from fewbits.errors import ArgumentError
from fewbits.formats import split
from fewbits.recipes.catalogue import RECIPES
from fewbits.recipes.recipe import Recipe


def recipe(text: str | Recipe) -> Recipe:
    """Return the recipe that ``text`` names.

    Args:
        text: ``NAME`` of the catalogue or ``NAME:ROLE=FORMAT,...``. A role is a field of :class:`Recipe` or
            one of ``weight``, ``activation``, ``gradient`` and ``backward``, and its format is written as
            ``FORMAT[/ROUNDING][/RULE]``. ``mx`` stands for microscaling without formats. A recipe is returned
            as it is.

    Raises:
        ArgumentError: no such recipe or role, or neither a text nor a recipe.
        FormatError: no such format.

    >>> recipe("mxfp6:gradient=mxfp8_e5m2/rceil").dx_gradient
    RoleFormat(format=..., rounding='nearest_even', scale_rule='rceil', shift=None)
    """
    if isinstance(text, Recipe):
        return text
    given: object = text  # whatever a caller without types passes
    if not isinstance(given, str):
        raise ArgumentError(f"recipe={given}; expected a text, as 'mxfp6', or a fewbits.recipes.Recipe")
    name, _, rest = text.partition(":")
    if name == "mx":
        base = RECIPES["fp32"].extended("mx", vector="bf16")
    elif name in RECIPES:
        base = RECIPES[name]
    else:
        near = get_close_matches(name, RECIPES, n=3)
        hint = f"; the nearest are {', '.join(near)}" if near else ""
        raise ArgumentError(f"there is no recipe {name!r}{hint}; `fewbits recipes` lists them all")
    changes: dict[str, str] = {}
    for part in split(rest) if rest else ():
        role, equals, value = (p.strip() for p in part.partition("="))
        if not equals:
            raise ArgumentError(f"{part!r} in recipe {text!r}; expected ROLE=FORMAT, as in weight=mxfp6_e3m2")
        if role in changes:
            raise ArgumentError(f"{role} is there twice in recipe {text!r}; give one")
        changes[role] = value
    return base.extended(text if rest else name, **changes) if changes else base
