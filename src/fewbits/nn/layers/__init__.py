"""Torch's layers, with their products in narrow formats. Each is a subclass: names and parameters stay."""

from __future__ import annotations

from torch import nn

from fewbits.nn.layers.dot_product import DotProductAttention, NarrowDotProductAttention
from fewbits.nn.layers.linear import NarrowLinear

# What takes the place of which layer, if its class is exactly that: a subclass may compute something else.
LAYERS: dict[type[nn.Module], type[nn.Module]] = {
    nn.Linear: NarrowLinear,
    DotProductAttention: NarrowDotProductAttention,
}
