"""The proxy of energy, against sums by hand."""

from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn

from fewbits.bench.energy import count, energy_proxy
from fewbits.recipes import RECIPES, recipe
from fewbits.train.tasks import task
from tests.bench import small

# Batch 16: 16 -> 32 -> 2. Backward: both weights, and the input of the second layer alone.
FORWARD = 16 * 16 * 32, 16 * 32 * 2
BACKWARD = FORWARD[0] + 2 * FORWARD[1]


def test_products_are_counted_as_by_hand() -> None:
    forward, backward = count(small.task())
    assert forward.multiply_adds == sum(FORWARD)
    assert backward.multiply_adds == BACKWARD
    # Operands: inputs, weights and biases; results.
    assert forward.operands == (16 * 16 + 16 * 32 + 32) + (16 * 32 + 32 * 2 + 2)
    assert forward.results == 16 * 32 + 16 * 2


def test_bits_of_both_operands_multiply() -> None:
    wide = energy_proxy(small.task(), RECIPES["fp32"])
    narrow = energy_proxy(small.task(), RECIPES["mxfp6"])
    mixed = energy_proxy(small.task(), RECIPES["mxfp6-finetune"])
    assert wide is not None
    assert narrow is not None
    assert mixed is not None
    assert wide.bit_products == (sum(FORWARD) + BACKWARD) * 32 * 32
    assert narrow.bit_products == (sum(FORWARD) + BACKWARD) * 6.25 * 6.25
    # Its backward pass is not rounded: operands are as they flow, in bf16.
    assert mixed.bit_products == sum(FORWARD) * 6.25 * 6.25 + BACKWARD * 16 * 16
    assert narrow.bits_moved < mixed.bits_moved < wide.bits_moved


def test_operands_move_as_they_are_rounded_and_results_as_they_flow() -> None:
    # Forward as above. Backward: the gradient with the input, for each weight, and with the second weight.
    operands = (
        (16 * 16 + 16 * 32 + 32)
        + (16 * 32 + 32 * 2 + 2)
        + (16 * 32 + 16 * 16)
        + (16 * 2 + 16 * 32)
        + (16 * 2 + 32 * 2)
    )
    results = 16 * 32 + 16 * 2 + 32 * 16 + 2 * 32 + 16 * 32
    wide = energy_proxy(small.task(), RECIPES["fp32"])
    narrow = energy_proxy(small.task(), RECIPES["mxfp6"])
    assert wide is not None
    assert narrow is not None
    assert wide.bits_moved == 32 * (operands + results)
    assert narrow.bits_moved == 6.25 * operands + 16 * results  # bf16 between the layers


@pytest.mark.parametrize("layers", [1, 2, 3])
@pytest.mark.parametrize("bias", [False, True])
def test_the_first_layer_has_no_gradient_of_its_input(layers: int, bias: bool) -> None:
    def create(seed: int) -> nn.Module:
        return nn.Sequential(*(nn.Linear(64, 64, bias=bias) for _ in range(layers)))

    def draw_batch(generator: torch.Generator, size: int) -> tuple[Tensor, ...]:
        return torch.ones(8, 64), torch.zeros(8, dtype=torch.long)

    found = energy_proxy(
        replace(small.task(), create=create, draw_batch=draw_batch),
        recipe("fp32:dw_activation=mxfp4,dw_gradient=mxfp4"),
    )
    assert found is not None
    each = 8 * 64 * 64  # forward, of weights in mxfp4, and of all inputs but the first
    assert found.bit_products == each * (layers * 32 * 32 + layers * 4.25 * 4.25 + (layers - 1) * 32 * 32)


def test_frozen_weights_have_no_gradient() -> None:
    def create(seed: int) -> nn.Module:
        first = nn.Linear(16, 16, bias=False)
        frozen = nn.Linear(16, 16, bias=False).requires_grad_(False)
        return nn.Sequential(first, frozen)

    found = energy_proxy(
        replace(small.task(), create=create), recipe("fp32:dw_activation=mxfp4,dw_gradient=mxfp4")
    )
    assert found is not None
    assert found.bit_products == 16 * 16 * 16 * (2 * 32 * 32 + 4.25 * 4.25 + 32 * 32)


def test_products_added_in_place_ask_for_gradients_of_their_factors() -> None:
    """The weight is trained, and what it multiplies is a sample."""

    class Adds(nn.Module):
        def __init__(self, in_place: bool) -> None:
            super().__init__()
            self.weight, self.in_place = nn.Parameter(torch.ones(16, 2)), in_place

        def forward(self, x: Tensor) -> Tensor:
            start = torch.zeros(16, 2)
            return start.addmm_(x, self.weight) if self.in_place else torch.addmm(start, x, self.weight)

    plain, in_place = (
        energy_proxy(replace(small.task(), create=lambda seed, i=i: Adds(i)), recipe("fp32")) for i in (0, 1)
    )
    assert in_place == plain
    assert plain is not None
    assert plain.bit_products == 2 * 16 * 16 * 2 * 32 * 32  # forward, and the gradient of the weight


def test_formats_that_change_are_not_counted() -> None:
    assert energy_proxy(small.task(), RECIPES["muppet"]) is None


# A batch of 16 windows of 64 bytes.
BY_HAND = {
    "lstm": 16 * 64 * (4 * 192 * (64 + 192) + 192 * 256),  # gates, of input and state; logits
    "bytes": 16 * 64 * (128 * (128 + 3 * 128 + 128 + 2 * 512 + 256)) + 2 * 16 * 64 * 64 * 128,  # attention
}


@pytest.mark.parametrize("name", BY_HAND)
def test_recurrences_and_attention_are_products_too(name: str) -> None:
    forward, backward = count(task(name))
    assert forward.multiply_adds == BY_HAND[name]
    assert 1.5 * BY_HAND[name] < backward.multiply_adds <= 2 * BY_HAND[name]


def test_groups_of_a_convolution_multiply_only_their_own_channels() -> None:
    def create(seed: int) -> nn.Module:
        return nn.Sequential(nn.Conv2d(32, 32, 3, padding=1, groups=32), nn.Flatten(), nn.Linear(2048, 4))

    def draw_batch(generator: torch.Generator, size: int) -> tuple[Tensor, ...]:
        images = torch.randn(size, 32, 8, 8, generator=generator, requires_grad=True)
        return images, torch.zeros(size, dtype=torch.long)

    forward, backward = count(replace(small.task(), create=create, draw_batch=draw_batch))
    assert forward.multiply_adds == 16 * (32 * 8 * 8 * 3 * 3 + 2048 * 4)
    assert backward.multiply_adds == 2 * forward.multiply_adds
