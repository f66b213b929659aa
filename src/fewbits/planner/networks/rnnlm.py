"""A language model of LSTM cells: an embedding, two layers and a projection to the vocabulary."""

from __future__ import annotations

from fewbits.planner.graph import Graph
from fewbits.planner.networks.builder import Builder


def rnnlm(
    batch: int = 64, *, steps: int = 40, units: int = 1024, layers: int = 2, vocabulary: int = 98304
) -> Graph:
    """Return the model; the vocabulary is a number that many devices divide."""
    build = Builder()
    x = build.embedding("embedding", (batch, steps), vocabulary, units)
    x = build.lstm("lstm", x, layers)
    x = build.product("projection", x, vocabulary)
    build.loss("softmax", x)
    return build.graph()
