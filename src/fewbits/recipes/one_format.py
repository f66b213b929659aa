"""The plainest narrow recipe: one format for weights, activations and gradients."""

from __future__ import annotations

from fewbits.formats import Format, parse
from fewbits.kernels import has_scale_rule
from fewbits.recipes.catalogue import RECIPES
from fewbits.recipes.recipe import Recipe
from fewbits.recipes.role_format import RoleFormat


def uniform_recipe(format: str | Format) -> Recipe:
    """Return the recipe that trains in one format: the operands of all products, and nothing else, are in it.

    Gradients take the scale rule ``rceil`` where the format has one, because ``floor`` clamps their largest
    values; the gradient of the logits stays as it is. Vectors, parameters and optimizer states are float32.

    Args:
        format: a format or its text; ``fp32`` gives plain training.

    Raises:
        FormatError: no such format.

    >>> uniform_recipe("mxfp4").dx_gradient
    RoleFormat(format=..., rounding='nearest_even', scale_rule='rceil', shift=None)
    """
    target = parse(format)
    if target == parse("fp32"):
        return RECIPES["fp32"]
    gradient = RoleFormat(target, scale_rule="rceil" if has_scale_rule(target) else "floor")
    return RECIPES["fp32"].extended(
        str(target),
        weight=RoleFormat(target),
        activation=RoleFormat(target),
        gradient=gradient,
        logit_gradient=False,
    )
