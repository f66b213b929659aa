"""Layers one after the other: what the networks written by hand are made of."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod

from fewbits.errors import ArgumentError
from fewbits.planner.graph import Collective, Dimension, Edge, Graph, Layer, Operand
from fewbits.tensor.inputs import is_count

_NAMES = {2: ("b", "n"), 3: ("b", "s", "n"), 4: ("b", "c", "h", "w")}  # of axes, by how many there are


@dataclass(frozen=True)
class Tensor:
    """What a layer made, or an input of the network."""

    shape: tuple[int, ...]
    layer: int | None = None  # that made it
    axes: tuple[int | None, ...] = ()  # of that layer's output, which each axis here is; empty: the same


class Builder:
    """A network that grows by calls, each of which returns the tensor that the new layer makes.

    Calls raise ArgumentError where an extent is no whole number from 1 up.
    """

    def __init__(self) -> None:
        self.layers: list[Layer] = []
        self.edges: list[Edge] = []

    def graph(self) -> Graph:
        """Return what was built."""
        return Graph(tuple(self.layers), tuple(self.edges))

    def product(self, name: str, x: Tensor, features: int, *, bias: bool = True) -> Tensor:
        """Map the last axis of ``x`` linearly; more axes before it are samples.

        Bias and activation count as one FLOP for each output.
        """
        *samples, inputs = x.shape
        names = ["b", "s", "t"][: len(samples)]
        space = _space([*names, "n", "k"], [*samples, features, inputs])
        weights = [Operand("weight", (features, inputs), ("n", "k"))]
        weights += [Operand("bias", (features,), ("n",))] if bias else []
        out = Operand("output", (*samples, features), (*names, "n"))
        flops = 2.0 * prod(samples) * features * inputs + prod(out.shape)
        own = Operand("input", x.shape, (*names, "k"))
        return self._add(Layer(name, "product", space, flops, (own,), tuple(weights), out, product=True), [x])

    def convolution(
        self,
        name: str,
        x: Tensor,
        features: int,
        kernel: tuple[int, int],
        *,
        stride: int = 1,
        padding: tuple[int, int] = (0, 0),
        activation: bool = False,
    ) -> Tensor:
        """Convolve (b, c, h, w) by a kernel of (h, w)."""
        b, c, h, w = x.shape
        high, wide = _convolved((h, w), kernel, stride, padding)
        out = Operand("output", (b, features, high, wide), ("b", "n", "h", "w"))
        halos = (0, 0, max(kernel[0] - stride, 0), max(kernel[1] - stride, 0))
        layer = Layer(
            name,
            "convolution",
            _space("bchwn", (b, c, high, wide, features)),
            2.0 * prod(out.shape) * c * prod(kernel) + prod(out.shape) * activation,
            (Operand("input", x.shape, ("b", "c", "h", "w"), halos),),
            (Operand("weight", (features, c, *kernel), ("n", "c", None, None)),),
            out,
            product=True,
        )
        return self._add(layer, [x])

    def pooling(self, name: str, x: Tensor, kernel: int, stride: int, padding: int = 0) -> Tensor:
        """Take the largest, or the mean, of each window of (b, c, h, w)."""
        b, c, h, w = x.shape
        high, wide = _convolved((h, w), (kernel, kernel), stride, (padding, padding))
        halo = max(kernel - stride, 0)
        layer = Layer(
            name,
            "pooling",
            _space("bchw", (b, c, high, wide)),
            float(b * c * high * wide * kernel**2),
            (Operand("input", x.shape, ("b", "c", "h", "w"), (0, 0, halo, halo)),),
            (),
            Operand("output", (b, c, high, wide), ("b", "c", "h", "w")),
        )
        return self._add(layer, [x])

    def mean(self, name: str, x: Tensor) -> Tensor:
        """Take the mean over h and w of (b, c, h, w)."""
        own = Operand("input", x.shape, ("b", "c", "h", "w"), kept=False)
        out = Operand("output", x.shape[:2], ("b", "c"))
        return self._add(
            Layer(name, "elementwise", _space("bchw", x.shape), float(prod(x.shape)), (own,), (), out), [x]
        )

    def batch_norm(self, name: str, x: Tensor) -> Tensor:
        """Normalize each channel of (b, c, h, w) over all samples, then rectify."""
        names, channels = ("b", "c", "h", "w"), x.shape[1]
        return self._norm(name, x, names, (Operand("moments", (2, channels), (None, "c")),), "c", channels)

    def layer_norm(self, name: str, x: Tensor) -> Tensor:
        """Normalize the last axis of (b, s, n) for each sample."""
        moments = Operand("moments", (2, *x.shape[:-1]), (None, "b", "s"))
        return self._norm(name, x, ("b", "s", "n"), (moments,), "n", x.shape[-1])

    def _norm(
        self,
        name: str,
        x: Tensor,
        names: Sequence[str],
        moments: tuple[Operand, ...],
        scaled: str,
        extent: int,
    ) -> Tensor:
        layer = Layer(
            name,
            "normalization",
            _space(names, x.shape),
            8.0 * prod(x.shape),
            (Operand("input", x.shape, tuple(names)),),
            (Operand("weight", (extent,), (scaled,)), Operand("bias", (extent,), (scaled,))),
            Operand("output", x.shape, tuple(names)),
            statistics=moments,
        )
        return self._add(layer, [x])

    def add(self, name: str, x: Tensor, y: Tensor) -> Tensor:
        """Add two tensors of one shape."""
        names = _NAMES[len(x.shape)]
        own = [Operand(n, x.shape, names, kept=False) for n in ("input", "other")]
        out = Operand("output", x.shape, names)
        return self._add(
            Layer(name, "elementwise", _space(names, x.shape), float(prod(x.shape)), tuple(own), (), out),
            [x, y],
        )

    def concatenate(self, name: str, parts: Sequence[Tensor]) -> Tensor:
        """Put channels of (b, c, h, w) one after the other; that axis is not split."""
        b, _, h, w = parts[0].shape
        shape = (b, sum(part.shape[1] for part in parts), h, w)
        names = ("b", None, "h", "w")
        own = tuple(Operand(f"input {i}", part.shape, names, kept=False) for i, part in enumerate(parts))
        layer = Layer(
            name, "concatenation", _space("bhw", (b, h, w)), 0.0, own, (), Operand("output", shape, names)
        )
        return self._add(layer, parts)

    def flatten(self, x: Tensor) -> Tensor:
        """Make one axis of all after the first, in which splits of channels stay whole pieces."""
        return Tensor((x.shape[0], prod(x.shape[1:])), x.layer, (0, 1))

    def embedding(self, name: str, samples: tuple[int, int], vocabulary: int, features: int) -> Tensor:
        """Look up rows for tokens (b, s), with a table that may be split by rows."""
        layer = Layer(
            name,
            "embedding",
            _space("bsnv", (*samples, features, vocabulary)),
            float(prod(samples) * features),
            (Operand("tokens", samples, ("b", "s"), kept=False),),
            (Operand("weight", (vocabulary, features), ("v", "n")),),
            Operand("output", (*samples, features), ("b", "s", "n")),
        )
        return self._add(layer, [Tensor(samples)])

    def attention(self, name: str, query: Tensor, key: Tensor, value: Tensor, heads: int) -> Tensor:
        """Attend from each position to all, in heads that share the features out."""
        b, s, n = query.shape
        t, each = key.shape[1], n // heads
        asked = Operand("query", (b, s, heads, each), ("b", "s", "h", None))
        read = [Operand(at, (b, t, heads, each), ("b", None, "h", None)) for at in ("key", "value")]
        layer = Layer(
            name,
            "attention",
            _space("bhs", (b, heads, s)),
            4.0 * b * heads * s * t * each + 5.0 * b * heads * s * t,
            (asked, *read),
            (),
            Operand("output", (b, s, heads, each), ("b", "s", "h", None)),
            product=True,
        )
        heads_of = [Tensor(x.shape, x.layer, (0, 1, 2, None)) for x in (query, key, value)]
        made = self._add(layer, heads_of)
        return Tensor((b, s, n), made.layer, (0, 1, 2))

    def lstm(self, name: str, x: Tensor, layers: int) -> Tensor:
        """Run layers of LSTM cells over (b, s, n); all but steps may be split.

        Parts of n gather the state of each step, which the next step and the next layer read by k, and
        scatter its gradient. Parts of k sum the four gates of each step, and gather that gradient again.
        """
        b, s, n = x.shape
        space = (
            *_space("lbnk", (layers, b, n, n)),
            Dimension("s", s, splittable=False),
        )
        # Four gates, each of the input and of the state before.
        weight = Operand("weight", (layers, 4, n, 2, n), ("l", None, "n", None, "k"))
        read = Operand("states", (layers, b, s, n), ("l", "b", "s", "k"))
        gates = Operand("gates", (layers, b, s, 4, n), ("l", "b", "s", None, "n"))
        gradient = Operand("states", (layers, b, s, n), ("l", "b", "s", "n"))
        layer = Layer(
            name,
            "lstm",
            space,
            2.0 * layers * b * s * 8 * n * n,
            (Operand("input", x.shape, ("b", "s", "k")),),
            (weight,),
            Operand("output", x.shape, ("b", "s", "n")),
            product=True,
            saved=5 * layers * b * s * n,
            collectives=tuple(
                Collective(*c, each=("l", "s")) for c in ((read, 1.0), (gates, 1.0), (gradient, 0.5))
            ),
        )
        return self._add(layer, [x])

    def loss(self, name: str, x: Tensor) -> Tensor:
        """Take softmax and cross entropy over the last axis."""
        names = _NAMES[len(x.shape)]
        sums = Operand("sums", (2, *x.shape[:-1]), (None, *names[:-1]))
        layer = Layer(
            name,
            "softmax",
            _space(names, x.shape),
            5.0 * prod(x.shape),
            (Operand("input", x.shape, names),),
            (),
            Operand("output", x.shape, names),
            statistics=(sums,),
        )
        return self._add(layer, [x])

    def _add(self, layer: Layer, read: Sequence[Tensor]) -> Tensor:
        index = len(self.layers)
        self.layers.append(layer)
        for operand, x in enumerate(read):
            if x.layer is not None:
                self.edges.append(Edge(x.layer, index, operand, x.axes))
        return Tensor(layer.output.shape, index)


def _space(names: Sequence[str], extents: Sequence[int]) -> tuple[Dimension, ...]:
    for extent in extents:
        if not is_count(extent):
            raise ArgumentError(
                f"a network with {extent!r:.80} samples, features or positions; expected whole numbers from 1"
                " up"
            )
    return tuple(Dimension(name, extent) for name, extent in zip(names, extents, strict=True))


def _convolved(
    extents: tuple[int, int], kernel: tuple[int, int], stride: int, padding: tuple[int, int]
) -> tuple[int, int]:
    high, wide = ((x + 2 * p - k) // stride + 1 for x, k, p in zip(extents, kernel, padding, strict=True))
    return high, wide
