"""The networks that are written by hand have the sizes that their authors and torchvision publish."""

from math import prod

import pytest

from fewbits.planner import NETWORKS

PARAMETERS = {
    "resnet101": 44_549_160,
    "inception_v3": 27_161_264 - 3_326_696,  # of the second classifier
    "alexnet": 62_378_344 + 24 * (4096 + 1) - (96 + 256 + 384 + 384 + 256),  # 1024 classes; no biases in conv
    "rnnlm": 98_304 * (1024 + 1024 + 1) + 2 * 4 * 1024 * (1024 + 1024),
}
PRODUCTS = {  # of one image
    "resnet101": 7.80e9,
    "inception_v3": 5.71e9,
    "alexnet": 55**2 * 96 * 363
    + 27**2 * 256 * 2400
    + 13**2 * (384 * 2304 + 640 * 3456)
    + 4096 * (9216 + 5120),
}


@pytest.mark.parametrize("name", PARAMETERS)
def test_a_network_has_its_authors_parameters(name: str) -> None:
    layers = NETWORKS[name](1).layers
    assert sum(prod(weight.shape) for layer in layers for weight in layer.weights) == PARAMETERS[name]


@pytest.mark.parametrize("name", PRODUCTS)
def test_a_network_multiplies_as_often_as_is_published(name: str) -> None:
    flops = sum(layer.flops for layer in NETWORKS[name](1).layers if layer.product)
    assert flops / 2 == pytest.approx(PRODUCTS[name], rel=2e-3)
