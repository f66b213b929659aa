"""Recipes for training: which role is held in which format, and what pays the rounding back.

Data only: :mod:`fewbits.nn`, :mod:`fewbits.optim` and :mod:`fewbits.train` apply them.
"""

from __future__ import annotations

from fewbits.recipes.catalogue import RECIPES
from fewbits.recipes.from_text import recipe
from fewbits.recipes.loss_scaling import LossScaling
from fewbits.recipes.one_format import uniform_recipe
from fewbits.recipes.recipe import Recipe
from fewbits.recipes.role_format import RoleFormat

__all__ = ["RECIPES", "LossScaling", "Recipe", "RoleFormat", "recipe", "uniform_recipe"]
