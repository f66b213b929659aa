"""ResNet-101 (He et al., Deep Residual Learning for Image Recognition, 2016)."""

from __future__ import annotations

from fewbits.planner.graph import Graph
from fewbits.planner.networks.builder import Builder, Tensor


def resnet101(batch: int = 128) -> Graph:
    """Return ResNet-101 for images of 224 and 1000 classes; the stride is in the 3 x 3 convolutions."""
    build = Builder()
    x = build.convolution("conv1", Tensor((batch, 3, 224, 224)), 64, (7, 7), stride=2, padding=(3, 3))
    x = build.pooling("pool1", build.batch_norm("bn1", x), 3, 2, 1)
    for stage, (blocks, planes) in enumerate(((3, 64), (4, 128), (23, 256), (3, 512)), start=1):
        for i in range(blocks):
            stride = 2 if i == 0 and stage > 1 else 1
            x = _bottleneck(build, f"layer{stage}.{i}", x, planes, stride, shortcut=i == 0)
    x = build.product("fc", build.mean("mean", x), 1000)
    build.loss("softmax", x)
    return build.graph()


def _bottleneck(build: Builder, name: str, x: Tensor, planes: int, stride: int, shortcut: bool) -> Tensor:
    y = build.batch_norm(f"{name}.bn1", build.convolution(f"{name}.conv1", x, planes, (1, 1)))
    y = build.convolution(f"{name}.conv2", y, planes, (3, 3), stride=stride, padding=(1, 1))
    y = build.convolution(f"{name}.conv3", build.batch_norm(f"{name}.bn2", y), 4 * planes, (1, 1))
    y = build.batch_norm(f"{name}.bn3", y)
    if shortcut:
        x = build.convolution(f"{name}.shortcut", x, 4 * planes, (1, 1), stride=stride)
        x = build.batch_norm(f"{name}.shortcut_bn", x)
    return build.add(f"{name}.add", y, x)
