"""Recipes and codecs: which role is held in which format, and what pays the rounding back.

Data only: :mod:`fewbits.nn`, :mod:`fewbits.optim` and :mod:`fewbits.train` apply recipes, to training;
:mod:`fewbits.distributed` applies codecs, to what travels between processes.
"""

from __future__ import annotations

from fewbits.recipes.catalogue import RECIPES
from fewbits.recipes.codec import Codec, codec
from fewbits.recipes.from_text import recipe
from fewbits.recipes.loss_scaling import LossScaling
from fewbits.recipes.one_format import uniform_recipe
from fewbits.recipes.recipe import Recipe
from fewbits.recipes.role_format import RoleFormat

__all__ = ["RECIPES", "Codec", "LossScaling", "Recipe", "RoleFormat", "codec", "recipe", "uniform_recipe"]
