"""Torch's layers, with their products in narrow formats. Each is a subclass: names and parameters stay."""

from __future__ import annotations

from torch import nn

from fewbits.nn.layers.activation import NarrowPReLU
from fewbits.nn.layers.attention import NarrowMultiheadAttention
from fewbits.nn.layers.bilinear import NarrowBilinear
from fewbits.nn.layers.cells import NarrowGRUCell, NarrowLSTMCell, NarrowRNNCell
from fewbits.nn.layers.convolution import (
    NarrowConv1d,
    NarrowConv2d,
    NarrowConv3d,
    NarrowConvTranspose1d,
    NarrowConvTranspose2d,
    NarrowConvTranspose3d,
)
from fewbits.nn.layers.dot_product import DotProductAttention, NarrowDotProductAttention
from fewbits.nn.layers.embedding import NarrowEmbedding, NarrowEmbeddingBag
from fewbits.nn.layers.linear import NarrowLinear
from fewbits.nn.layers.recurrent import NarrowGRU, NarrowLSTM, NarrowRNN

# What takes the place of which layer.
LAYERS: dict[type[nn.Module], type[nn.Module]] = {
    nn.Linear: NarrowLinear,
    DotProductAttention: NarrowDotProductAttention,
    nn.Conv1d: NarrowConv1d,
    nn.Conv2d: NarrowConv2d,
    nn.Conv3d: NarrowConv3d,
    nn.ConvTranspose1d: NarrowConvTranspose1d,
    nn.ConvTranspose2d: NarrowConvTranspose2d,
    nn.ConvTranspose3d: NarrowConvTranspose3d,
    nn.Embedding: NarrowEmbedding,
    nn.EmbeddingBag: NarrowEmbeddingBag,
    nn.Bilinear: NarrowBilinear,
    nn.MultiheadAttention: NarrowMultiheadAttention,
    nn.LSTM: NarrowLSTM,
    nn.GRU: NarrowGRU,
    nn.RNN: NarrowRNN,
    nn.LSTMCell: NarrowLSTMCell,
    nn.GRUCell: NarrowGRUCell,
    nn.RNNCell: NarrowRNNCell,
    nn.PReLU: NarrowPReLU,
}
# Those that cannot be computed by sums of bit patterns.
NO_ADDITION = (NarrowConv3d, NarrowConvTranspose1d, NarrowConvTranspose2d, NarrowConvTranspose3d)
