"""The Transformer (Vaswani et al., Attention Is All You Need, 2017), normalized before each part."""

from __future__ import annotations

from fewbits.planner.graph import Graph
from fewbits.planner.networks.builder import Builder, Tensor


def transformer(
    batch: int = 64,
    *,
    length: int = 512,
    layers: int = 6,
    features: int = 1024,
    heads: int = 16,
    head_features: int = 128,
    hidden: int = 8192,
    vocabulary: int = 49152,
) -> Graph:
    """Return an encoder and a decoder of so many layers; by default of PaSE's sizes (Elango 2021).

    The vocabulary of 50 000 is rounded to a number that many devices divide.
    """
    net = _Transformer(features, heads, head_features, hidden)
    x = net.build.embedding("encoder.embedding", (batch, length), vocabulary, features)
    for i in range(layers):
        x = net.attend(f"encoder.{i}.attention", x, None)
        x = net.feed_forward(f"encoder.{i}.mlp", x)
    encoded = net.build.layer_norm("encoder.norm", x)
    x = net.build.embedding("decoder.embedding", (batch, length), vocabulary, features)
    for i in range(layers):
        x = net.attend(f"decoder.{i}.attention", x, None)
        x = net.attend(f"decoder.{i}.cross", x, encoded)
        x = net.feed_forward(f"decoder.{i}.mlp", x)
    x = net.build.product("logits", net.build.layer_norm("decoder.norm", x), vocabulary, bias=False)
    net.build.loss("softmax", x)
    return net.build.graph()


def decoder_only(
    batch: int,
    *,
    length: int,
    layers: int,
    features: int,
    heads: int,
    vocabulary: int = 49152,
) -> Graph:
    """Return a language model of decoder layers with four times the features in their products."""
    net = _Transformer(features, heads, features // heads, 4 * features)
    x = net.build.embedding("embedding", (batch, length), vocabulary, features)
    for i in range(layers):
        x = net.attend(f"layers.{i}.attention", x, None)
        x = net.feed_forward(f"layers.{i}.mlp", x)
    x = net.build.product("logits", net.build.layer_norm("norm", x), vocabulary, bias=False)
    net.build.loss("softmax", x)
    return net.build.graph()


class _Transformer:
    def __init__(self, features: int, heads: int, head_features: int, hidden: int) -> None:
        self.build = Builder()
        self.features, self.heads, self.hidden = features, heads, hidden
        self.inner = heads * head_features

    def attend(self, name: str, x: Tensor, memory: Tensor | None) -> Tensor:
        """Add attention to ``memory``, or to ``x`` itself."""
        build = self.build
        own = build.layer_norm(f"{name}.norm", x)
        read = own if memory is None else memory
        query = build.product(f"{name}.query", own, self.inner)
        key, value = (build.product(f"{name}.{part}", read, self.inner) for part in ("key", "value"))
        y = build.attention(f"{name}.scores", query, key, value, self.heads)
        return build.add(f"{name}.add", x, build.product(f"{name}.output", y, self.features))

    def feed_forward(self, name: str, x: Tensor) -> Tensor:
        build = self.build
        y = build.product(f"{name}.up", build.layer_norm(f"{name}.norm", x), self.hidden)
        return build.add(f"{name}.add", x, build.product(f"{name}.down", y, self.features))
