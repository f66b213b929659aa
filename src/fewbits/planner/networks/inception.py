"""InceptionV3 (Szegedy et al., Rethinking the Inception Architecture for Computer Vision, 2016)."""

from __future__ import annotations

from collections.abc import Sequence

from fewbits.planner.graph import Graph
from fewbits.planner.networks.builder import Builder, Tensor

# A convolution of a branch: features, kernel, and "valid" where it has a stride of two and no padding.
_Step = tuple[int, tuple[int, int]] | tuple[int, tuple[int, int], str]
_ONE, _THREE, _FIVE = (1, 1), (3, 3), (5, 5)
_WIDE, _HIGH = (1, 7), (7, 1)


def inception_v3(batch: int = 128) -> Graph:
    """Return InceptionV3 for images of 299 and 1000 classes, without the second classifier."""
    net = _Inception()
    x = Tensor((batch, 3, 299, 299))
    x = net.step("conv1a", x, (32, _THREE, "valid"))
    x = net.step("conv2a", x, (32, _THREE), padded=False)
    x = net.step("conv2b", x, (64, _THREE))
    x = net.build.pooling("pool1", x, 3, 2)
    x = net.step("conv3b", x, (80, _ONE))
    x = net.step("conv4a", x, (192, _THREE), padded=False)
    x = net.build.pooling("pool2", x, 3, 2)
    for name, pooled in (("5b", 32), ("5c", 64), ("5d", 64)):
        branches = [[(64, _ONE)], [(48, _ONE), (64, _FIVE)], [(64, _ONE), (96, _THREE), (96, _THREE)]]
        x = net.mixed(name, x, branches, pooled)
    x = net.mixed("6a", x, [[(384, _THREE, "valid")], [(64, _ONE), (96, _THREE), (96, _THREE, "valid")]], 0)
    for name, c in (("6b", 128), ("6c", 160), ("6d", 160), ("6e", 192)):
        long: list[_Step] = [(c, _ONE), (c, _HIGH), (c, _WIDE), (c, _HIGH), (192, _WIDE)]
        x = net.mixed(name, x, [[(192, _ONE)], [(c, _ONE), (c, _WIDE), (192, _HIGH)], long], 192)
    last: list[_Step] = [(192, _ONE), (192, _WIDE), (192, _HIGH), (192, _THREE, "valid")]
    x = net.mixed("7a", x, [[(192, _ONE), (320, _THREE, "valid")], last], 0)
    x = net.widest("7b", x)
    x = net.widest("7c", x)
    x = net.build.product("fc", net.build.mean("mean", x), 1000)
    net.build.loss("softmax", x)
    return net.build.graph()


class _Inception:
    def __init__(self) -> None:
        self.build = Builder()

    def step(self, name: str, x: Tensor, step: _Step, *, padded: bool = True) -> Tensor:
        """Convolve, normalize and rectify."""
        features, kernel = step[0], step[1]
        strided = len(step) == 3
        padding = (0, 0) if strided or not padded else (kernel[0] // 2, kernel[1] // 2)
        x = self.build.convolution(name, x, features, kernel, stride=2 if strided else 1, padding=padding)
        return self.build.batch_norm(f"{name}.bn", x)

    def branch(self, name: str, x: Tensor, steps: Sequence[_Step]) -> Tensor:
        for i, step in enumerate(steps):
            x = self.step(f"{name}.{i}", x, step)
        return x

    def mixed(self, name: str, x: Tensor, branches: Sequence[Sequence[_Step]], pooled: int) -> Tensor:
        """Put branches side by side; one more is pooled, with a stride of two where it has no features."""
        made = [self.branch(f"mixed{name}.{i}", x, steps) for i, steps in enumerate(branches)]
        made.append(self.pooled(name, x, pooled))
        return self.build.concatenate(f"mixed{name}", made)

    def pooled(self, name: str, x: Tensor, features: int) -> Tensor:
        if not features:
            return self.build.pooling(f"mixed{name}.pool", x, 3, 2)
        x = self.build.pooling(f"mixed{name}.pool", x, 3, 1, 1)
        return self.step(f"mixed{name}.pooled", x, (features, _ONE))

    def widest(self, name: str, x: Tensor) -> Tensor:
        """The last two: two branches end in a row and a column side by side."""
        at = f"mixed{name}"
        ends: tuple[_Step, _Step] = ((384, (1, 3)), (384, (3, 1)))
        made = [self.step(f"{at}.0", x, (320, _ONE))]
        starts: tuple[list[_Step], list[_Step]] = ([(384, _ONE)], [(448, _ONE), (384, _THREE)])
        for i, start in enumerate(starts, start=1):
            y = self.branch(f"{at}.{i}", x, start)
            both = [self.step(f"{at}.{i}.{j}", y, end) for j, end in zip("ab", ends, strict=True)]
            made.append(self.build.concatenate(f"{at}.{i}.both", both))
        made.append(self.pooled(name, x, 192))
        return self.build.concatenate(at, made)
