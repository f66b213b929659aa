"""Recipes for training: which role is held in which format, and what pays the rounding back.

Data only: :mod:`fewbits.nn`, :mod:`fewbits.optim` and :mod:`fewbits.train` apply them.
"""

from __future__ import annotations

from fewbits.recipes.cast import Cast
from fewbits.recipes.catalogue import RECIPES
from fewbits.recipes.recipe import Recipe
from fewbits.recipes.scaling import Scaling
from fewbits.recipes.text import recipe
from fewbits.recipes.uniform import uniform

__all__ = ["RECIPES", "Cast", "Recipe", "Scaling", "recipe", "uniform"]
