"""Turn a layer into its narrow class, also under recipes that leave layers alone."""

from typing import Any

from torch import nn

from fewbits.nn import LayerPrecision
from fewbits.nn.layers import LAYERS
from fewbits.recipes import Recipe, recipe


def narrowed(layer: nn.Module, chosen: str | Recipe = "fp32", **precision: Any) -> nn.Module:
    """Return ``layer`` itself, with its narrow class and the precision of a recipe."""
    layer.__class__ = LAYERS[type(layer)]
    layer.precision = LayerPrecision(recipe(chosen), **precision)
    return layer
