"""Bytes and seconds of layers and edges, against pieces laid out on devices one by one."""

import itertools
import math
from dataclasses import replace
from math import prod

import numpy as np
import pytest
from numpy.typing import NDArray

from fewbits.errors import ArgumentError
from fewbits.planner.configurations import divisor_splits, mesh_splits
from fewbits.planner.edge_cost import edge_costs
from fewbits.planner.graph import Dimension, Edge, Layer, Operand
from fewbits.planner.layer_cost import GradientCosts, gradient_costs, layer_costs, within_nodes
from fewbits.planner.machines import product_rate
from fewbits.planner.networks.builder import Builder, Tensor
from fewbits.planner.role_bits import role_bits
from fewbits.records import Machine, MachineLink
from tests.planner import small

SHAPE = (8, 12)


def owned(split: tuple[int, int], devices: int) -> list[NDArray[np.bool_]]:
    """Which values of a matrix each device has; pieces are repeated where there are fewer than devices."""
    masks = []
    for i, j in itertools.product(range(split[0]), range(split[1])):
        mask = np.zeros(SHAPE, bool)
        mask[
            np.ix_(*(np.arange(n) // (n // c) == k for n, c, k in zip(SHAPE, split, (i, j), strict=True)))
        ] = True
        masks.append(mask)
    return masks * (devices // len(masks))


def nothing(k: int) -> GradientCosts:
    """Gradients that need no sum."""
    return GradientCosts(np.ones(k), np.zeros(k), np.zeros(k))


def pointwise(split_names: tuple[str, str] = ("b", "n")) -> Layer:
    space = tuple(Dimension(name, n) for name, n in zip(split_names, SHAPE, strict=True))
    operand = Operand("x", SHAPE, split_names)
    return Layer("x", "normalization", space, 1.0, (operand,), (), operand)


@pytest.mark.parametrize("made", [(1, 1), (2, 1), (1, 2), (4, 1), (2, 2), (1, 4)])
@pytest.mark.parametrize("used", [(1, 1), (2, 1), (1, 2), (4, 1), (2, 2), (1, 4)])
def test_an_edge_moves_what_pieces_on_devices_lack(made: tuple[int, int], used: tuple[int, int]) -> None:
    have, need = owned(made, 4), owned(used, 4)
    received = min(
        sum(int((want & ~have[d]).sum()) for want, d in zip(need, order, strict=True)) / 4
        for order in itertools.permutations(range(4))
    )
    layer = pointwise()
    costs = edge_costs(
        Edge(0, 1, 0),
        (layer, np.array([made]), np.zeros(1)),
        (layer, np.array([used]), np.full(1, 32.0), np.zeros(1)),
        nothing(1),
        4,
        small.SLOW,
    )
    assert costs.sent[0, 0] == pytest.approx(4 * received)


def test_backward_moves_what_the_producer_lacks() -> None:
    layer = pointwise()
    ones, bits = np.zeros(1), np.full(1, 32.0)
    costs = edge_costs(
        Edge(0, 1, 0),
        (layer, np.array([(1, 1)]), bits),
        (layer, np.array([(4, 1)]), bits, ones),
        nothing(1),
        4,
        small.SLOW,
    )
    assert costs.sent[0, 0] == 4 * 96 * 3 / 4  # forward nothing: all have it; backward three quarters


def test_a_flattened_axis_overlaps_as_an_independent_one() -> None:
    build = Builder()
    x = build.pooling("pool", Tensor((8, 4, 4, 4)), 2, 2)
    build.product("fc", build.flatten(x), 16)
    pool, fc = build.layers
    bits = np.full(1, 32.0)
    for made, used, forward in (
        ((1, 4, 1, 1), (1, 1, 4), 0.0),  # channels are whole pieces of the flattened axis
        ((1, 1, 2, 2), (1, 1, 4), 1 / 4 - 1 / 16),
        ((4, 1, 1, 1), (1, 1, 4), 1 / 4 - 1 / 16),
    ):
        costs = edge_costs(
            build.edges[0],
            (pool, np.array([made]), 0 * bits),
            (fc, np.array([used]), bits, bits),
            nothing(1),
            4,
            small.SLOW,
        )
        assert costs.sent[0, 0] == pytest.approx(forward * 4 * 128)


def test_a_product_sums_over_what_its_operands_lack() -> None:
    """m, n, k = 8, 12, 16 split (2, 3, 4): output over k, input's gradient over n, weight's over m."""
    layer = Layer(
        "fc", "product", (Dimension("m", 8), Dimension("n", 12), Dimension("k", 16)), 2.0 * 8 * 12 * 16,
        (Operand("input", (8, 16), ("m", "k")),), (Operand("weight", (12, 16), ("n", "k")),),
        Operand("output", (8, 12), ("m", "n")), product=True,
    )  # fmt: skip
    split = np.array([(2, 3, 4)])
    costs = layer_costs(layer, split, [True], False, role_bits("fp32"), small.SLOW)
    gradient = gradient_costs(layer, layer.inputs[0], split, role_bits("fp32"), small.SLOW)
    output = 2 * 3 / 4 * (8 * 12 / 6)
    of_input = 2 * 2 / 3 * (8 * 16 / 8)
    weight = 2 * 1 / 2 * (12 * 16 / 12)
    assert costs.sent[0] == pytest.approx(4 * (output + weight))
    assert gradient.sent[0] == pytest.approx(4 * of_input)
    assert costs.link[0] == pytest.approx(8e-9 * costs.sent[0])
    assert costs.compute[0] == pytest.approx(3 * layer.flops / 24 / 1e13)
    first = layer_costs(layer, split, [False], False, role_bits("fp32"), small.SLOW)
    assert costs.sent[0] == first.sent[0]
    assert costs.memory[0] == pytest.approx(16 * (12 * 16 / 12))  # fp32: weight, gradient and two moments
    assert first.memory[0] - costs.memory[0] == pytest.approx(4 * 8 * 16 / 8)  # what comes from outside


def test_a_gradient_is_scattered_where_the_producer_holds_pieces() -> None:
    """Eight devices, n split in four: over them whole at the producer, in two, in four, and in eight."""
    build = Builder()
    x = build.product("up", Tensor((8, 64)), 64, bias=False)
    build.product("fc", x, 64, bias=False)
    up, fc = build.layers
    used, roles = np.array([(1, 4, 1)]), role_bits("fp32")
    bits, gradient = np.full(1, 32.0), gradient_costs(fc, fc.inputs[0], used, roles, small.SLOW)
    piece = 4 * 8 * 64
    for n, scattered in ((1, 1), (2, 2), (4, 4), (8, 4)):
        producer, consumer = (up, np.array([(1, n, 1)]), bits), (fc, used, bits, bits)
        costs = edge_costs(build.edges[0], producer, consumer, gradient, 8, small.SLOW)
        gathered = piece * (1 - 1 / n)
        left = 4 // scattered
        summed = piece * (1 - 1 / scattered) + 2 * (1 - 1 / left) * piece / scattered
        assert costs.sent[0, 0] == pytest.approx(gathered + summed)
        assert costs.seconds[0, 0] == pytest.approx(8e-9 * (gathered + summed))


def test_a_bias_is_summed_over_samples_alone() -> None:
    build = Builder()
    build.product("fc", Tensor((8, 16)), 32)
    split, roles = np.array([(2, 1, 4)]), role_bits("fp32")
    with_bias = layer_costs(build.layers[0], split, [False], False, roles, small.SLOW)
    layer = replace(build.layers[0], weights=build.layers[0].weights[:1])
    without = layer_costs(layer, split, [False], False, roles, small.SLOW)
    assert with_bias.sent[0] - without.sent[0] == pytest.approx(4 * 32)


def test_halos_are_sent_where_rows_are_split() -> None:
    build = Builder()
    build.convolution("conv", Tensor((2, 3, 8, 8)), 4, (3, 3), padding=(1, 1))
    layer = build.layers[0]
    splits = np.array([(1, 1, 1, 1, 1), (2, 1, 1, 1, 1), (1, 1, 4, 1, 1), (1, 1, 2, 2, 1)])
    costs = layer_costs(layer, splits, [False], False, role_bits("fp32"), small.SLOW)
    weights = [2 * (q - 1) / q * 4 * 3 * 9 for q in (1, 2, 4, 4)]
    halos = [0, 0, 2 * 3 * 2 * 8, 2 * 3 * (6 * 6 - 4 * 4)]
    assert costs.sent == pytest.approx([4 * (w + h) for w, h in zip(weights, halos, strict=True)])


def test_statistics_are_summed_forward_and_backward() -> None:
    build = Builder()
    build.layer_norm("norm", Tensor((4, 8, 16)))
    costs = layer_costs(build.layers[0], np.array([(1, 1, 4)]), [False], False, role_bits("fp32"), small.SLOW)
    assert costs.sent[0] == pytest.approx(4 * 2 * (2 * 3 / 4 * 2 * 32))


def test_a_collective_of_several_nodes_sends_first_within_them() -> None:
    """Eight devices, four a node: a sum within each, then of each quarter between two nodes."""
    machine = Machine("m", {"fp32": 1.0}, (MachineLink(8.0), MachineLink(2.0)), 1.0, 4)
    layer = pointwise()
    summed = Layer(
        "x", "elementwise", layer.space, 0.0, (), (Operand("weight", (80,), (None,)),), layer.output
    )
    costs = layer_costs(summed, np.array([(8, 1), (4, 1), (1, 2)]), [], False, role_bits("fp32"), machine)
    inner, outer = 2 * 3 / 4 * 320, 2 * 1 / 2 * 320 / 4
    assert costs.sent == pytest.approx([inner + outer, inner, 320])
    assert costs.link == pytest.approx([1e-9 * (inner + 4 * outer), 1e-9 * inner, 1e-9 * 320])


def test_the_last_dimensions_lie_within_a_node() -> None:
    machine = Machine("m", {"fp32": 1.0}, (MachineLink(8.0), MachineLink(2.0)), 1.0, 4)
    splits = np.array([(4, 2), (2, 4), (2, 8), (8, 1), (3, 2)])
    assert within_nodes(splits, machine).tolist() == [[2, 2], [1, 4], [1, 4], [4, 1], [1, 2]]


@pytest.mark.parametrize("devices", range(1, 9))
def test_devices_of_one_node_never_take_the_link_between_nodes(devices: int) -> None:
    machine = Machine("m", {"fp32": 1.0}, (MachineLink(8.0), MachineLink(2.0)), 1.0, 8)
    build = Builder()
    build.product("fc", Tensor((840, 840)), 840)
    splits = mesh_splits(build.layers[0], devices)
    assert (within_nodes(splits, machine) == splits).all()
    assert within_nodes(np.array([(2, 3), (4, 3), (3, 5)]), machine).tolist() == [[2, 3], [2, 3], [1, 5]]


@pytest.mark.parametrize("devices", [1, 2, 6, 12])
def test_splits_are_all_that_divide(devices: int) -> None:
    layer = Builder()
    layer.product("fc", Tensor((8, 12)), 9)
    found = {tuple(map(int, s)) for s in mesh_splits(layer.layers[0], devices)}
    expected = {
        c
        for c in itertools.product(range(1, devices + 1), repeat=3)
        if devices % prod(c) == 0 and all(n % k == 0 for n, k in zip((8, 9, 12), c, strict=True))
    }
    assert found == expected
    assert tuple(mesh_splits(layer.layers[0], devices)[0]) == (1, 1, 1)


def test_splits_of_the_paper_leave_four() -> None:
    build = Builder()
    build.product("fc", Tensor((8, 12)), 9)
    found = {tuple(map(int, s)) for s in divisor_splits(build.layers[0], 6, 4)}
    assert found == {(1, 1, 1), (1, 1, 2), (1, 1, 3), (2, 1, 1), (2, 1, 2), (2, 1, 3)}


@pytest.mark.parametrize(
    ("recipe", "codec", "expected"),
    [
        ("fp32", None, (32, 32, 32, 32, 128, 0)),
        ("amp-bf16", None, (16, 16, 16, 32, 128, 0)),
        ("mxfp8", None, (16, 8.25, 8.25, 32, 128, 8.25)),
        ("mxfp8", "mxfp8_e4m3", (16, 8.25, 8.25, 8.25, 128, 8.25)),
        ("fp8-lm", None, (16, 8, 8, 8, 48, 8)),
    ],
)
def test_bits_follow_the_recipe(recipe: str, codec: str | None, expected: tuple[float, ...]) -> None:
    bits = role_bits(recipe, codec)
    found = (bits.vector, bits.activation, bits.gradient, bits.weight_gradient, bits.parameter)
    assert (*found, bits.kept or 0) == pytest.approx(expected, rel=1e-3)


def test_products_run_at_the_rate_of_their_widest_operand() -> None:
    machine = Machine("m", {"fp32": 1.0, "bf16": 2.0, "fp8": 4.0, "fp4": 8.0}, (MachineLink(1),), 1.0)
    assert [product_rate(machine, b) for b in (32, 19, 16, 8, 6, 4)] == [1, 1, 2, 4, 4, 8]
    assert role_bits("mxfp4w-mxfp6").products == (6, 6, 6)
    assert role_bits("mxfp4").products[0] == 4
    assert role_bits("bf16").products == (16, 16, 16)
    only = Machine("m", {"fp8": 4.0}, (MachineLink(1),), 1.0)
    assert product_rate(only, 8) == 4
    with pytest.raises(ArgumentError, match="rates of products in fp8 alone, and the recipe has"):
        product_rate(only, 32)


def test_halos_of_what_a_layer_made_are_sent_with_their_gradients() -> None:
    build = Builder()
    build.convolution("conv", Tensor((2, 3, 8, 8)), 4, (3, 3), padding=(1, 1))
    layer, split, roles = build.layers[0], np.array([(1, 1, 4, 1, 1)]), role_bits("fp32")
    outside, made = (layer_costs(layer, split, [f], False, roles, small.SLOW).sent[0] for f in (False, True))
    assert made - outside == 4 * 2 * 3 * 2 * 8


def test_what_stays_within_a_node_takes_its_link() -> None:
    """Eight devices, four a node: rows and columns change places within groups of four, or of all."""
    machine = Machine("m", {"fp32": 1.0}, (MachineLink(8.0), MachineLink(2.0)), 1.0, 4)
    layer, bits = pointwise(), np.full(1, 32.0)
    for made, used, gigabits in (((2, 4), (2, 2), 8.0), ((2, 4), (2, 1), 8.0), ((1, 4), (4, 1), 2.0)):
        producer, consumer = (layer, np.array([made]), 0 * bits), (layer, np.array([used]), bits, bits)
        costs = edge_costs(Edge(0, 1, 0), producer, consumer, nothing(1), 8, machine)
        assert costs.sent[0, 0] > 0
        assert costs.seconds[0, 0] == pytest.approx(8e-9 * costs.sent[0, 0] / gigabits)


def test_an_lstm_exchanges_states_and_gates_in_each_step() -> None:
    """Cells laid out one by one: who computes which part of each step, and what it lacks then."""
    layers, b, s, n = 2, 4, 3, 8
    build = Builder()
    build.lstm("lstm", Tensor((b, s, n)), layers)
    layer, roles = build.layers[0], role_bits("fp32")
    splits = [(1, 1, 8, 1, 1), (1, 1, 1, 8, 1), (1, 2, 4, 1, 1), (1, 1, 2, 4, 1), (2, 1, 4, 1, 1)]
    costs = layer_costs(layer, np.array(splits), [False], False, roles, replace(small.SLOW, links=(
        MachineLink(1.0, 1.0),)))  # fmt: skip
    for at, (in_l, in_b, in_n, in_k, _) in enumerate(splits):
        sent = messages = 0.0
        for _ in range(layers // in_l * s):
            own, whole, rows = n // in_n, n // in_k, b // in_b
            sent += rows * (whole - whole / in_n)  # of the state that is read: what others made
            sent += rows * (whole - whole / in_n)  # sums of its gradient, each to who made it
            sent += 2 * rows * 4 * own * (in_k - 1) / in_k  # sums of the gates
            sent += rows * (own - own / in_k)  # the gradient of what is made, read in pieces
            messages += 2 * math.log2(in_n) + 3 * math.log2(in_k)
        weights = 2 * (in_b - 1) / in_b * 8 * layers * n * n / (in_l * in_n * in_k)
        output = 2 * (in_l * in_k - 1) / (in_l * in_k) * b * s * n / (in_b * in_n)
        messages += 2 * math.ceil(math.log2(in_b)) + 2 * math.log2(in_l * in_k)
        assert costs.sent[at] == pytest.approx(4 * (sent + weights + output))
        assert costs.link[at] == pytest.approx(8e-9 * costs.sent[at] + 1e-6 * messages)


def test_a_frozen_weight_has_no_gradient_and_no_state() -> None:
    build = Builder()
    build.product("fc", Tensor((8, 16)), 32)
    layer, split, roles = build.layers[0], np.array([(4, 1, 1)]), role_bits("fp8-lm")
    weight, bias = layer.weights
    frozen = replace(layer, weights=(replace(weight, trained=False), bias))
    both = replace(layer, weights=tuple(replace(w, trained=False) for w in layer.weights))
    full, part, none = (
        layer_costs(x, split, [True], False, roles, small.SLOW) for x in (layer, frozen, both)
    )
    assert full.sent[0] - part.sent[0] == 2 * 3 / 4 * 16 * 32 * roles.weight_gradient / 8
    assert none.sent[0] == 0
    assert full.memory[0] - part.memory[0] == (roles.parameter - roles.frozen) / 8 * 16 * 32
    assert roles.frozen < roles.parameter
    assert role_bits("fp32").frozen == 32
    assert full.compute[0] == part.compute[0] == pytest.approx(1.5 * none.compute[0])
