"""AlexNet (Krizhevsky, Sutskever and Hinton, 2012), with one group in each convolution."""

from __future__ import annotations

from fewbits.planner.graph import Graph
from fewbits.planner.networks.builder import Builder, Tensor


def alexnet(batch: int = 128) -> Graph:
    """Return AlexNet as PaSE (Elango 2021, section IV) plans it: images of 227, 1024 classes."""
    build = Builder()
    x = Tensor((batch, 3, 227, 227))
    x = build.convolution("conv1", x, 96, (11, 11), stride=4, activation=True)
    x = build.pooling("pool1", x, 3, 2)
    x = build.convolution("conv2", x, 256, (5, 5), padding=(2, 2), activation=True)
    x = build.pooling("pool2", x, 3, 2)
    for i, features in ((3, 384), (4, 384), (5, 256)):
        x = build.convolution(f"conv{i}", x, features, (3, 3), padding=(1, 1), activation=True)
    x = build.flatten(build.pooling("pool5", x, 3, 2))
    for i, features in ((1, 4096), (2, 4096), (3, 1024)):
        x = build.product(f"fc{i}", x, features)
    build.loss("softmax", x)
    return build.graph()
