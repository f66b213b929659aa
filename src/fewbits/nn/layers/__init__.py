"""Torch's layers, with their products in narrow formats. Each is a subclass: names and parameters stay."""

from __future__ import annotations

from torch import nn

from fewbits.nn.layers.activation import NarrowPReLU
from fewbits.nn.layers.attention import NarrowMultiheadAttention
from fewbits.nn.layers.bilinear import NarrowBilinear
from fewbits.nn.layers.convolution import NarrowConv1d, NarrowConv2d
from fewbits.nn.layers.dot_product import DotProductAttention, NarrowDotProductAttention
from fewbits.nn.layers.embedding import NarrowEmbedding
from fewbits.nn.layers.linear import NarrowLinear
from fewbits.nn.layers.recurrent import NarrowGRU, NarrowLSTM

# What takes the place of which layer, if its class is exactly that: a subclass may compute something else.
LAYERS: dict[type[nn.Module], type[nn.Module]] = {
    nn.Linear: NarrowLinear,
    DotProductAttention: NarrowDotProductAttention,
    nn.Conv1d: NarrowConv1d,
    nn.Conv2d: NarrowConv2d,
    nn.Embedding: NarrowEmbedding,
    nn.Bilinear: NarrowBilinear,
    nn.MultiheadAttention: NarrowMultiheadAttention,
    nn.LSTM: NarrowLSTM,
    nn.GRU: NarrowGRU,
    nn.PReLU: NarrowPReLU,
}
