"""A recipe in a few words, and as the fields in which it differs from training in FP32."""

from __future__ import annotations

from dataclasses import fields

from fewbits.recipes.catalogue import RECIPES
from fewbits.recipes.recipe import Recipe


def in_words(recipe: Recipe) -> str:
    """Say what a recipe narrows, in one line for each kind of role."""
    if recipe.autocast:
        return f"torch.autocast to {recipe.autocast}"
    groups = {
        "weights": (recipe.forward_weight, recipe.dx_weight),
        "activations": (recipe.forward_activation, recipe.dw_activation),
        "gradients": (recipe.dx_gradient, recipe.dw_gradient),
    }
    parts = []
    for role, (forward, backward) in groups.items():
        if forward is not None:
            parts.append(f"{role} {forward}" + ("" if forward == backward else " (forward only)"))
    parts += [f"vectors {recipe.vector}"] if recipe.vector != "fp32" else []
    stored = ("parameter", "held_gradient", "first_moment", "second_moment")
    parts += [f"{s.replace('_', ' ')} {getattr(recipe, s)}" for s in stored if getattr(recipe, s) is not None]
    parts += ["fp32 master copy"] if recipe.has_master else []
    parts += [f"update {recipe.update}"] if recipe.update != "nearest" else []
    parts += [f"loss scale {recipe.scaling}"] if recipe.scaling is not None else []
    parts += [f"schedule {recipe.schedule}"] if recipe.schedule else []
    parts += [f"optimizer {recipe.optimizer}"] if recipe.optimizer != "adamw" else []
    parts += [f"{recipe.lr_schedule} learning rate"] if recipe.lr_schedule != "cosine" else []
    parts += ["integer sums for products"] if recipe.product == "add" else []
    return "; ".join(parts) or "nothing"


def source_of(recipe: Recipe) -> str:
    """Return the paper of a recipe; of a changed one also the recipe of the catalogue that the paper has."""
    if recipe.name in RECIPES:
        return recipe.paper
    base = recipe.name.partition(":")[0]
    return f"changed from {base if base in RECIPES else 'fp32'}: {recipe.paper}"


def differences(recipe: Recipe) -> list[tuple[str, str]]:
    """Return (field, value) of each field in which a recipe differs from plain FP32 training."""
    values = ((field, getattr(recipe, field.name)) for field in fields(recipe)[2:])
    return [(field.name, str(value)) for field, value in values if value != field.default]
