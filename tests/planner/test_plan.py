"""A plan is the best of all, costs what its parts cost, keeps limits, and fits its own network alone."""

import itertools
import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from fewbits.distributed import sent_bytes
from fewbits.errors import ArgumentError, DataError
from fewbits.planner import MACHINES, NETWORKS, Graph, Machine, MachineLink, Plan, plan
from fewbits.planner.limited import cheapest, leanest
from fewbits.planner.networks import BATCH, decoder_only
from fewbits.planner.networks.builder import Builder, Tensor
from fewbits.planner.options import layer_options
from fewbits.planner.role_bits import role_bits
from fewbits.planner.tables import tables
from fewbits.recipes import RECIPES
from tests.planner import small

INF = math.inf


def planned(graph: Graph, devices: int = 4, machine: Machine = small.TWO_LEVELS, **options: object) -> Plan:
    return plan(graph, devices=devices, machine=machine, **({"memory": INF} | options))


@pytest.mark.parametrize("machine", small.MACHINES, ids=lambda m: m.name)
@pytest.mark.parametrize("name", ["perceptron", "branches"])
def test_no_choice_of_splits_is_faster(name: str, machine: Machine) -> None:
    graph = small.GRAPHS[name]()
    found = small.small_tables(graph, 2, machine)
    best = min(found.total("seconds", choice) for choice in small.all_choices(found))
    made = planned(graph, 2, machine)
    assert made.seconds == pytest.approx(best, rel=1e-12)
    assert made.bound == made.seconds


@pytest.mark.parametrize("name", [*small.GRAPHS, "alexnet", "rnnlm"])
def test_the_time_is_the_sum_of_its_parts(name: str) -> None:
    graph = small.GRAPHS[name]() if name in small.GRAPHS else NETWORKS[name](BATCH[name])
    made = planned(graph, 8)
    parts = [layer.compute_seconds + layer.link_seconds for layer in made.layers]
    assert made.seconds == pytest.approx(sum(parts) + sum(e.link_seconds for e in made.edges), rel=1e-12)
    assert made.compute_seconds + made.link_seconds == pytest.approx(made.seconds, rel=1e-12)


def test_features_of_a_recurrence_are_not_split_for_nothing() -> None:
    """Each of 40 steps of both layers gathers 64 x 1024 states of eight parts, and scatters as much."""
    graph = NETWORKS["rnnlm"](64)
    pinned = planned(graph, 8, machine="h100", pins={"lstm": (1, 1, 8, 1, 1)})
    lstm = pinned.layers[1]
    assert lstm.sent_bytes == 2 * 7 / 8 * 4 * 2 * 64 * 40 * 1024
    assert lstm.link_seconds > 2 * 40 * 2 * 3 * 3e-6  # of latency alone
    assert planned(graph, 8, machine="h100").seconds <= pinned.seconds


machines = st.builds(
    lambda flops, near, far, latency, nodes: Machine(
        "drawn",
        {"fp32": flops},
        (MachineLink(near, latency), MachineLink(far, latency)),
        1e15,
        nodes,
        flops / 9,
    ),
    st.floats(1e9, 1e15),
    st.floats(1e-2, 1e5),
    st.floats(1e-2, 1e5),
    st.sampled_from([0.0, 1.0, 100.0]),
    st.sampled_from([1, 2, 4, 8]),
)


@settings(max_examples=40, deadline=None)
@given(
    machines,
    st.sampled_from([*small.GRAPHS, "alexnet", "rnnlm", "decoder"]),
    st.sampled_from([1, 2, 4, 6, 8, 16]),
)
def test_no_rule_of_others_is_faster(machine: Machine, name: str, devices: int) -> None:
    networks = NETWORKS | {"decoder": lambda b: decoder_only(b, length=32, layers=2, features=64, heads=4)}
    graph = networks[name](64) if name in networks else small.GRAPHS[name]()
    made = planned(graph, devices, machine, compare=True)
    assert {s.name for s in made.strategies} == {"data parallel", "one weird trick", "megatron"}
    for strategy in made.strategies:
        assert made.seconds <= strategy.seconds * (1 + 1e-12)


@pytest.mark.parametrize("devices", [10**12 - 11, 2 * (10**9 + 7)])  # a prime, and two times one
def test_divisors_of_many_devices_are_not_counted_up_to(devices: int) -> None:
    made = planned(small.perceptron(), devices, compare=True)
    assert len(made.strategies) == 3
    assert {split for layer in made.layers for split in layer.split} <= {1, 2}


def test_rules_split_what_they_say() -> None:
    found = small.small_tables(small.perceptron(), 4, small.TWO_LEVELS)
    from fewbits.planner.rules import strategies

    chosen = strategies(found, 4, 4)
    splits = {
        name: [tuple(map(int, o.splits[k])) for o, k in zip(found.options, choice, strict=True)]
        for name, choice in chosen.items()
    }
    assert splits["data parallel"] == [(4, 1, 1), (4, 1, 1), (4, 1)]
    assert splits["one weird trick"] == [(1, 4, 1), (1, 4, 1), (1, 1)]
    assert splits["megatron"] == [(1, 4, 1), (1, 1, 4), (1, 1)]


@pytest.mark.parametrize("name", ["perceptron", "attention"])
def test_with_an_infinite_link_it_is_perfectly_parallel(name: str) -> None:
    graph = small.GRAPHS[name]()
    made = planned(graph, 4, small.FAST)
    alone = planned(graph, 1, small.FAST)
    assert made.seconds == pytest.approx(alone.seconds / 4, rel=1e-12)


@pytest.mark.parametrize("name", [*small.GRAPHS, "alexnet"])
def test_with_a_dead_link_nothing_is_sent(name: str) -> None:
    graph = small.GRAPHS[name]() if name in small.GRAPHS else NETWORKS[name](BATCH[name])
    made = planned(graph, 4, small.DEAD)
    assert made.sent_bytes == 0
    assert made.seconds <= planned(graph, 1, small.DEAD).seconds * (1 + 1e-12)
    slow = replace(small.DEAD, links=(MachineLink(1e-12),))
    assert planned(graph, 4, slow).sent_bytes == 0


def test_a_plan_that_has_to_send_over_a_dead_link_is_refused() -> None:
    with pytest.raises(ArgumentError, match=r"ever ends on the machine 'dead': it has a link of 0 Gbit/s"):
        planned(small.perceptron(), 4, small.DEAD, pins={"up": {"k": 2}})


def test_no_plan_over_its_cap_is_returned_where_only_a_dead_link_keeps_it() -> None:
    """Of two devices each holds the whole weight, or half of it and sends: that never ends."""
    graph, dead = apart(8), replace(small.DEAD, memory=1e9)
    found = small.small_tables(graph, 2, dead)
    choices = list(small.all_choices(found))
    lean = min(found.total("memory", c) for c in choices)
    ends = min(found.total("memory", c) for c in choices if found.total("seconds", c) < INF)
    assert lean < ends
    assert planned(graph, 2, dead, memory=ends).memory_bytes <= ends
    with pytest.raises(ArgumentError, match="no plan that was found ever ends"):
        planned(graph, 2, dead, memory=(lean + ends) / 2)


def test_caps_where_nothing_ends_are_told_as_that() -> None:
    """No choice has a finite time, so no prices of memory can be found."""
    graph = NETWORKS["alexnet"](128)
    pins = {"*": {"b": 8}}
    free = planned(graph, 8, small.FAST, pins=pins)
    with pytest.raises(ArgumentError, match="no plan that was found ever ends"):
        planned(graph, 8, small.DEAD, memory=free.memory_bytes, pins=pins)
    with pytest.raises(ArgumentError, match=r"`memory` of \d+ bytes is \d+ bytes too little"):
        planned(graph, 8, small.DEAD, memory=free.memory_bytes / 2, pins=pins)


@pytest.mark.parametrize("name", NETWORKS)
@pytest.mark.parametrize("batch", [0, -1, 8.0, True, "8"])
def test_a_batch_that_is_no_number_of_samples_is_refused(name: str, batch: Any) -> None:
    with pytest.raises(ArgumentError, match="expected whole numbers from 1 up"):
        NETWORKS[name](batch)


def test_one_device_computes_all_and_sends_nothing() -> None:
    made = planned(small.branches(), 1)
    assert made.sent_bytes == 0
    assert all(set(layer.split) == {1} for layer in made.layers)


def test_more_bandwidth_never_makes_a_plan_slower() -> None:
    graph = NETWORKS["alexnet"](128)
    links = [MachineLink(g) for g in (0.1, 1, 10, 100, 1000)]
    times = [planned(graph, 16, replace(small.SLOW, links=(link,))).seconds for link in links]
    assert times == sorted(times, reverse=True)


@pytest.mark.parametrize("share", [0.05, 0.3, 0.6, 0.9])
def test_a_memory_cap_is_kept_and_the_bound_holds(share: float) -> None:
    graph = small.perceptron()
    slow = small.SLOW
    found = small.small_tables(graph, 4, slow)
    choices = list(small.all_choices(found))
    memory = np.array([found.total("memory", choice) for choice in choices])
    seconds = np.array([found.total("seconds", choice) for choice in choices])
    cap = memory.min() + share * (memory[seconds.argmin()] - memory.min())
    best = seconds[memory <= cap].min()
    made = planned(graph, 4, slow, memory=cap)
    assert made.memory_bytes <= cap * (1 + 1e-12)
    assert made.bound <= best * (1 + 1e-9)
    assert best <= made.seconds * (1 + 1e-9)
    assert made.seconds <= best * 1.1
    assert made.gap == pytest.approx(1 - made.bound / made.seconds)


def chain(*shapes: tuple[int, int]) -> Graph:
    """Products of 256 samples, each of so many outputs and inputs."""
    build = Builder()
    x = Tensor((256, shapes[0][1]))
    for i, (features, _) in enumerate(shapes):
        x = build.product(f"fc{i}", x, features, bias=False)
    return build.graph()


@pytest.mark.parametrize("compare", [True, False])
def test_a_strategy_that_keeps_a_tight_cap_is_not_faster(compare: bool) -> None:
    graph = chain((256, 1024), (64, 256), (64, 64))
    machine = Machine("m", {"fp32": 1e12}, (MachineLink(10.0, 1.0),), 16e9, 4, 1e10)
    made = planned(graph, 4, machine, memory=2310144.0, compare=compare)
    free = planned(graph, 4, machine, compare=True)
    megatron = next(s for s in free.strategies if s.name == "megatron")
    assert megatron.memory_bytes <= 2310144
    assert made.seconds <= megatron.seconds
    tight = planned(graph, 4, machine, memory=0.999 * megatron.memory_bytes, compare=True)
    assert {s.name for s in tight.strategies if not s.fits} >= {"megatron"}
    assert all(s.fits == (s.memory_bytes <= tight.memory_cap) for s in tight.strategies)


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.sampled_from([16, 64, 256, 1024]), min_size=3, max_size=5),
    st.floats(0, 1.2),
    st.sampled_from([1.0, 10.0, 100.0]),
    st.sampled_from([4, 8]),
)
def test_no_strategy_within_any_cap_is_faster(
    extents: list[int], share: float, gigabits: float, devices: int
) -> None:
    graph = chain(*((n, k) for k, n in itertools.pairwise(extents)))
    machine = Machine("m", {"fp32": 1e12}, (MachineLink(gigabits, 1.0),), 16e9, 4, 1e10)
    free = planned(graph, devices, machine, compare=True)
    masses = [free.memory_bytes, *(s.memory_bytes for s in free.strategies)]
    for cap in (min(masses) + share * (max(masses) - min(masses)), masses[-1]):
        made = planned(graph, devices, machine, memory=cap, compare=True)
        assert made.memory_bytes <= cap * (1 + 1e-9)
        assert all(made.seconds <= s.seconds * (1 + 1e-12) for s in made.strategies if s.fits)


def test_a_cap_that_is_not_reached_changes_nothing() -> None:
    graph = NETWORKS["alexnet"](128)
    free = planned(graph, 8)
    assert planned(graph, 8, memory=free.memory_bytes).seconds == free.seconds
    assert planned(graph, 8, memory=0.95 * free.memory_bytes).seconds >= free.seconds


def test_a_cap_below_what_the_weights_need_says_what_is_missing() -> None:
    message = (
        r"`memory` of 1000 bytes is \d+ bytes too little: the leanest plan takes \d+, of which the layer 'up'"
    )
    with pytest.raises(ArgumentError, match=message):
        planned(small.perceptron(), 4, memory=1000.0)


def test_the_cap_is_the_machines_memory_by_default() -> None:
    tiny = replace(small.TWO_LEVELS, memory=20_000.0)
    with pytest.raises(ArgumentError, match="`memory` of 20000 bytes"):
        plan(small.perceptron(), devices=1, machine=tiny)
    assert plan(small.perceptron(), devices=1, machine=small.TWO_LEVELS).memory_cap == 16e9


@pytest.mark.parametrize("most", [0.0, 1.5, 3.0, 20.0])
def test_formats_are_chosen_with_splits_within_a_sum_of_sensitivity(most: float) -> None:
    graph = small.perceptron()
    formats = ("fp32", "mxfp8")
    numbers = {"up": (0.0, 1.0), "down": (0.0, 2.0)}
    found = small.small_tables(graph, 2, small.TWO_LEVELS, formats, numbers)
    best = min(
        found.total("seconds", c) for c in small.all_choices(found) if found.total("sensitivity", c) <= most
    )
    given_numbers = {name: dict(zip(formats, n, strict=True)) for name, n in numbers.items()}
    made = planned(graph, 2, formats=formats, sensitivity=given_numbers, max_sensitivity=most)
    assert made.sensitivity <= most
    assert made.bound <= best * (1 + 1e-9)
    assert best <= made.seconds <= best * 1.001
    if most == 0:
        assert {layer.format for layer in made.layers} == {"fp32", ""}
    if most == 20:
        assert {layer.format for layer in made.layers} == {"mxfp8", ""}


def apart(*features: int) -> Graph:
    """Products of 4 samples of 8 inputs, none of which reads another."""
    build = Builder()
    for i, n in enumerate(features):
        build.product(f"fc{i}", Tensor((4, 8)), n, bias=False)
    return build.graph()


@pytest.mark.parametrize("devices", [1, 2])
def test_two_caps_that_a_choice_keeps_are_kept_together(devices: int) -> None:
    """The caps are what each choice on the front of memory and sensitivity takes: neither can be lower."""
    graph, numbers = apart(8, 8, 8, 16), {f"fc{i}": (0.0, 2.0) for i in range(4)}
    found = small.small_tables(graph, devices, small.SLOW, ("fp32", "mxfp8"), numbers)
    sums = {
        tuple(found.total(quantity, c) for quantity in ("memory", "sensitivity"))
        for c in small.all_choices(found)
    }
    front = [s for s in sums if not any(o != s and o[0] <= s[0] and o[1] <= s[1] for o in sums)]
    assert len(front) >= 3
    for memory, sensitivity in front:
        made = cheapest(found, {"memory": memory, "sensitivity": sensitivity}, 2**20)
        assert made is not None
        assert found.total("memory", made.options) <= memory * (1 + 1e-12)
        assert found.total("sensitivity", made.options) <= sensitivity
        assert cheapest(found, {"memory": memory * 0.999, "sensitivity": sensitivity}, 2**20) is None


def test_two_caps_that_no_choice_keeps_are_told_as_not_found() -> None:
    formats, numbers = ("fp32", "mxfp8"), {f"fc{i}": {"fp32": 0.0, "mxfp8": 2.0} for i in range(2)}
    graph = apart(8, 8)
    lean = planned(graph, 1, formats=formats).memory_bytes
    with pytest.raises(ArgumentError, match="no plan was found that keeps memory"):
        planned(graph, 1, formats=formats, sensitivity=numbers, memory=lean, max_sensitivity=3.0)


def test_narrow_recipes_take_less_time_and_memory() -> None:
    graph = NETWORKS["transformer"](64)
    wide, narrow = (planned(graph, 8, small.TWO_LEVELS, recipe=r) for r in ("fp32", "mxfp8"))
    assert narrow.seconds < wide.seconds
    assert narrow.memory_bytes < wide.memory_bytes
    assert planned(graph, 8, recipe="fp8-lm").memory_bytes < narrow.memory_bytes


def test_narrow_weights_need_fewer_devices() -> None:
    """Of 6.8 billion parameters; docs/planning.md has the table."""
    graph = decoder_only(8, length=2048, layers=32, features=4096, heads=32)

    def least(devices: int, recipe: str) -> float:
        """Bytes of the leanest plan: without the time of those that are as fast as can be within a cap."""
        roles = [role_bits(recipe)] * 2
        found = tables(graph, layer_options(graph, devices, 1, {}, {}), devices, MACHINES["h100"], roles, {})
        return found.total("memory", leanest(found, "memory", 2**30))

    for recipe, fewest in {"amp-bf16": 16, "mxfp8": 8, "fp8-lm": 4}.items():
        assert least(fewest, recipe) <= 24e9 < least(fewest // 2, recipe)
    assert least(16, "fp32") > 24e9
    assert plan(graph, devices=4, machine="h100", memory=24e9, recipe="fp8-lm").memory_bytes <= 24e9
    with pytest.raises(ArgumentError, match="too little"):
        plan(graph, devices=2, machine="h100", memory=24e9, recipe="fp8-lm")


def test_a_codec_makes_gradients_take_its_bits() -> None:
    graph = small.perceptron()
    pins = {"*": {"b": 4}}
    wide, narrow = (
        planned(graph, 4, pins=pins, codec=c).layers[0].sent_bytes for c in ("fp32", "mxfp8_e4m3")
    )
    assert narrow / wide == pytest.approx(8.25 / 32)
    assert wide == 2 * 3 / 4 * 4 * (64 * 256 + 256)


@pytest.mark.parametrize("devices", [2, 8, 64])
def test_what_a_density_keeps_is_sent_to_all_others_as_by_the_collectives(devices: int) -> None:
    graph, codec = NETWORKS["alexnet"](128), "topk:density=0.01,feedback"
    weights = [w for layer in graph.layers for w in layer.weights]
    pins = {"*": {"b": devices}}
    dense, sparse = (planned(graph, devices, pins=pins, codec=c) for c in ("mxfp8_e4m3", codec))
    counted = sum(sent_bytes(codec, math.prod(w.shape), devices) for w in weights)
    assert sparse.sent_bytes == pytest.approx(counted, rel=5e-3)  # which counts what processes agree on
    assert (sparse.sent_bytes < dense.sent_bytes) == (devices < 64)
    of_latency = sum(1e-6 * small.SLOW.links[0].latency_us * (devices - 1) for _ in graph.layers)
    slow = planned(graph, devices, small.SLOW, pins=pins, codec=codec)
    assert slow.link_seconds == pytest.approx(8e-9 * slow.sent_bytes + of_latency)


def test_pins_and_prohibitions_are_kept() -> None:
    graph = NETWORKS["alexnet"](128)
    free = planned(graph, 8)
    made = planned(
        graph, 8, pins={"fc1": (2, 2, 2), "conv*": {"b": 4}}, forbid={"*": ["h", "w"], "fc2": ["k"]}
    )
    split = {layer.name: dict(zip(layer.dimensions, layer.split, strict=True)) for layer in made.layers}
    assert split["fc1"] == {"b": 2, "n": 2, "k": 2}
    assert all(split[f"conv{i}"]["b"] == 4 for i in range(1, 6))
    assert split["fc2"]["k"] == 1
    assert all(s.get("h", 1) == 1 for s in split.values())
    assert made.seconds > free.seconds


@pytest.mark.parametrize(
    ("options", "told"),
    [
        (
            {"pins": {"fc9": {"b": 2}}},
            "`pins` names 'fc9', which fits no layer; the first of them",
        ),
        ({"pins": {"up": {"z": 2}}}, "`pins` fix 'z' of the layer 'up'; its dimensions are b, n, k"),
        ({"pins": {"up": {"b": 3}}}, r"leave the layer 'up' \(b=16, n=64, k=64\)"),
        ({"pins": {"up": (2, 2)}}, "which has the 3 dimensions b, n, k"),
        ({"forbid": {"fc9": ["b"]}}, "`forbid` names 'fc9'"),
        (
            {"forbid": {"up": ["z"]}},
            "`forbid` names the dimension 'z' of 'up', which no such layer has; they",
        ),
        ({"forbid": {"*": ["b", "h"]}}, "`forbid` names the dimension 'h' of '*'"),
        ({"devices": 0}, "devices=0; expected a whole number from 1 up"),
        ({"devices": 10**400}, "devices=1000.*; expected a whole number from 1 up to 10.12"),
        *(({"devices": n}, f"devices={n!r}; expected a whole number") for n in (8.0, "8", True, -1)),
        ({"max_sensitivity": INF * 0}, "`max_sensitivity` is nan; expected a number"),
        ({"memory": 0.0}, "`memory` is 0.0; expected bytes"),
        ({"memory": float("nan")}, "`memory` is nan; expected bytes"),
        ({"memory": "40G"}, "`memory` is '40G'; expected bytes"),
        ({"memory_bytes": float("nan")}, "memory_bytes=nan; expected a number of bytes from 1 up"),
        ({"max_sensitivity": "3"}, "`max_sensitivity` is '3'; expected a number"),
        (
            {"sensitivity": {n: {"fp32": "a"} for n in ("up", "down")}},
            r"`sensitivity` of the layer 'up' is \['a'\]; expected numbers",
        ),
        ({"formats": (RECIPES["fp32"], RECIPES["mxfp8"])}, "expected names of recipes or formats"),
        ({"formats": "fp32"}, "expected names of recipes or formats"),
        ({"pins": {"up": 8}}, "`pins` of 'up' is 8; expected whole numbers by dimension"),
        ({"pins": {"up": {"b": "2"}}}, "`pins` of 'up' is .*; expected whole numbers by dimension"),
        ({"pins": {"up": "abc"}}, "`pins` of 'up' is 'abc'; expected whole numbers by dimension"),
        ({"forbid": {"*": "bn"}}, "`forbid` of '\\*' is 'bn'; expected a list of dimensions"),
        ({"machine": "pdp11"}, "there is no machine 'pdp11'; expected one of v100"),
        ({"max_sensitivity": 1.0}, "`max_sensitivity` without `sensitivity`"),
        ({"sensitivity": {"loss": {"fp32": 0.0}}}, "`sensitivity` names 'loss', which is no product"),
        ({"sensitivity": {"up": {"fp32": 0.0}}}, "no number for the layer 'down' in fp32"),
    ],
)
def test_bad_arguments_are_refused(options: dict[str, object], told: str) -> None:
    graph = small.perceptron()
    given_options = {"devices": 4, "machine": small.TWO_LEVELS} | options
    with pytest.raises(ArgumentError, match=told.replace("n=64", "n=256")):
        plan(graph, **given_options)


def test_a_machine_has_whole_nodes() -> None:
    with pytest.raises(ArgumentError, match=r"per_node=2\.5"):
        replace(small.TWO_LEVELS, per_node=2.5)


def test_a_network_without_layers_is_refused() -> None:
    with pytest.raises(ArgumentError, match="the network has no layers"):
        planned(Graph((), ()))


def test_limits_that_contradict_each_other_are_refused() -> None:
    graph, formats = small.perceptron(), ("fp32", "mxfp8")
    numbers = {name: {"fp32": 0.0, "mxfp8": 1.0} for name in ("up", "down")}
    with pytest.raises(ArgumentError, match="`max_sensitivity` of -1 is below 0"):
        planned(graph, formats=formats, sensitivity=numbers, max_sensitivity=-1.0)


def test_a_plan_comes_back_from_its_file(tmp_path: Path) -> None:
    made = planned(small.branches(), 4, compare=True, recipe="mxfp8", memory=1e9)
    made.save(tmp_path / "plan.json")
    assert Plan.load(tmp_path / "plan.json") == made
    assert json.loads((tmp_path / "plan.json").read_text())["schema"] == 1
    single = planned(small.branches(), 1)  # no runner-up: infinite
    single.save(tmp_path / "one.json")
    assert Plan.load(tmp_path / "one.json") == single


def test_a_plan_is_used_again_at_the_costs_of_another_machine(tmp_path: Path) -> None:
    graph = NETWORKS["alexnet"](128)
    made = planned(graph, 8)
    made.save(tmp_path / "plan.json")
    again = planned(graph, 8, reuse=tmp_path / "plan.json")
    assert (again.layers, again.seconds) == (
        tuple(replace(a, runner_up=a.split, runner_up_seconds=INF) for a in made.layers),
        made.seconds,
    )
    slow = planned(graph, 8, small.SLOW, reuse=made)
    assert [a.split for a in slow.layers] == [a.split for a in made.layers]
    assert slow.seconds > planned(graph, 8, small.SLOW).seconds


def test_a_plan_with_formats_is_used_again_with_them() -> None:
    graph, formats = small.perceptron(), ("fp32", "mxfp8")
    made = planned(graph, 2, formats=formats)
    assert planned(graph, 2, formats=formats, reuse=made).seconds == made.seconds
    with pytest.raises(ArgumentError, match="in 'mxfp8', which is none of fp32"):
        planned(graph, 2, reuse=made)


def test_the_order_of_formats_changes_nothing() -> None:
    graph, formats = attention_of(4), ("fp32", "mxfp8", "amp-bf16")
    numbers = {layer.name: dict(zip(formats, (0.0, 2.0, 1.0), strict=True)) for layer in graph.layers
               if layer.product}  # fmt: skip
    for limit in ({}, {"sensitivity": numbers, "max_sensitivity": 9.0}):
        first, *rest = (
            planned(graph, 4, formats=order, compare=True, **limit)
            for order in itertools.permutations(formats)
        )
        assert all(made == first for made in rest)


def attention_of(length: int) -> Graph:
    return decoder_only(8, length=length, layers=1, features=64, heads=4)


def test_layers_without_products_take_the_recipe_beside_formats() -> None:
    graph = attention_of(16)
    narrow = planned(graph, 4, formats=("amp-bf16",), recipe="amp-bf16", name="n")
    assert narrow == planned(graph, 4, recipe="amp-bf16", name="n")
    wide = planned(graph, 4, formats=("amp-bf16",))
    assert (wide.recipe, wide.others) == ("amp-bf16", "fp32")
    pins = {layer.name: layer.split for layer in narrow.layers}
    same = planned(graph, 4, formats=("amp-bf16",), pins=pins)
    for layer, a, b in zip(graph.layers, narrow.layers, same.layers, strict=True):
        assert a.compute_seconds == b.compute_seconds
        assert layer.product or 2 * a.sent_bytes == b.sent_bytes or layer.weights
    assert same.sent_bytes > narrow.sent_bytes


@pytest.mark.parametrize("beside", [{"pins": {"up": {"b": 2}}}, {"forbid": {"up": ["b"]}}])
def test_a_plan_is_not_used_again_with_other_splits(beside: dict[str, object]) -> None:
    graph = small.perceptron()
    with pytest.raises(ArgumentError, match="`reuse` takes all splits as the plan has them; leave `pins`"):
        planned(graph, 4, reuse=planned(graph, 4), **beside)


def test_a_plan_for_something_else_is_refused() -> None:
    made = planned(small.branches(), 4)
    with pytest.raises(
        ArgumentError,
        match=r"another model, 'network' with 5 layers, than this one with 3; .*'stem' and 'up'",
    ):
        planned(small.perceptron(), 4, reuse=made)
    with pytest.raises(ArgumentError, match="the plan is for 4 devices and 8 were asked for"):
        planned(small.branches(), 8, reuse=made)
    other = small.perceptron(32)
    with pytest.raises(ArgumentError, match="the plan is for another model"):
        planned(other, 4, reuse=planned(small.perceptron(16), 4))


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"kind": "recipe"}, "is no plan; expected a file that fewbits plan wrote"),
        ({"schema": 2}, "is a plan of schema 2; this fewbits reads 1"),
        ({"devices": "many"}, "is no plan: TypeError: 'many' is no whole number"),
        ({"layers": [{}]}, "is no plan: KeyError"),
        ({"machine": []}, "is no plan: TypeError"),
        ({"seconds": True}, "is no plan: TypeError: True is no number"),
    ],
)
def test_a_damaged_plan_is_refused(change: dict[str, object], told: str, tmp_path: Path) -> None:
    path = tmp_path / "plan.json"
    planned(small.perceptron()).save(path)
    document = json.loads(path.read_text())
    inner = {k: v for k, v in change.items() if k not in document}
    document |= {k: v for k, v in change.items() if k in document}
    path.write_text(json.dumps(document | {"plan": document["plan"] | inner}))
    with pytest.raises(DataError, match=told):
        Plan.load(path)


DAMAGED: dict[str, tuple[list[str | int], object]] = {
    "a split that no device has": (["layers", 0, "split"], [3, 1, 1]),
    "a split of a thousand digits": (["layers", 0, "split"], [10**1000, 1, 1]),
    "a number that no float is": (["seconds"], 10**400),
    "NaN": (["seconds"], "nan"),
    "no devices": (["devices"], 0),
    "an edge to layer 99": (["edges", 0, "consumer"], 99),
    "an edge from before the first layer": (["edges", 0, "producer"], -1),
    "another edge": (["edges", 0, "operand"], 7),
    "other dimensions": (["layers", 0, "dimensions"], ["k", "n", "b"]),
    "another name": (["layers", 0, "name"], "other"),
    "no edges": (["edges"], []),
    "one layer": (["layers"], slice(1)),
}


@pytest.mark.parametrize("damage", DAMAGED)
def test_a_plan_whose_parts_do_not_fit_is_not_used_again(damage: str, tmp_path: Path) -> None:
    graph, path = small.perceptron(), tmp_path / "plan.json"
    planned(graph).save(path)
    document = json.loads(path.read_text())
    (*places, last), value = DAMAGED[damage]
    inner = document["plan"]
    for place in places:
        inner = inner[place]
    inner[last] = inner[last][value] if isinstance(value, slice) else value
    path.write_text(json.dumps(document))
    with pytest.raises(DataError):
        planned(graph, reuse=path)


@pytest.mark.parametrize("text", ["", "[", "[]", '{"kind": 1, "kind": 2}', "[" * 100_000])
def test_what_is_no_json_is_refused(text: str, tmp_path: Path) -> None:
    (tmp_path / "plan.json").write_text(text)
    with pytest.raises(DataError):
        Plan.load(tmp_path / "plan.json")


def test_the_runner_up_costs_what_the_plan_costs_with_it() -> None:
    graph = NETWORKS["alexnet"](128)
    made = planned(graph, 8)
    pins = {layer.name: layer.split for layer in made.layers}
    for layer in made.layers[:4]:
        other = planned(graph, 8, pins=pins | {layer.name: layer.runner_up})
        assert other.seconds - made.seconds == pytest.approx(layer.runner_up_seconds, rel=1e-6)
        assert layer.runner_up_seconds >= 0


def test_little_memory_for_tables_gives_a_plan_with_a_bound() -> None:
    graph = decoder_only(8, length=32, layers=2, features=64, heads=4)
    exact = planned(graph, 8)
    rough = planned(graph, 8, memory_bytes=200)
    assert rough.bound <= exact.seconds <= rough.seconds
    assert rough.bound < rough.seconds
    assert rough.gap > 0


def test_prices_find_what_a_limit_allows() -> None:
    found = small.small_tables(small.perceptron(), 4, small.SLOW)
    assert cheapest(found, {"memory": 1.0}, 2**20) is None


def test_only_splits_that_run_are_chosen_where_that_is_asked() -> None:
    graph = NETWORKS["alexnet"](16)
    wide = planned(graph, 64, forbid={"conv*": ["n"]})
    runs = planned(graph, 64, forbid={"conv*": ["n"]}, executable=True)
    split = {layer.name: dict(zip(layer.dimensions, layer.split, strict=True)) for layer in runs.layers}
    assert all(s["h"] == s["w"] == 1 for name, s in split.items() if name.startswith("conv"))
    assert runs.seconds >= wide.seconds
    with pytest.raises(ArgumentError, match="the layer 'conv2' has no split that runs: windows reach"):
        planned(graph, 3, pins={"conv2": {"h": 3}}, executable=True)


def test_products_receive_values_in_their_format_and_all_others_as_vectors() -> None:
    graph = small.perceptron()
    pins = {"up": (1, 4, 1), "down": (1, 1, 1), "loss": (1, 1)}
    edges = {r: planned(graph, 4, pins=pins, recipe=r).edges[0] for r in ("fp32", "mxfp8")}
    bits, forward = {r: edge.sent_bytes for r, edge in edges.items()}, 16 * 256 * 3 / 4
    # What comes is kept for the backward pass, unless the product keeps a narrow copy of its own.
    assert (edges["fp32"].memory_bytes, edges["mxfp8"].memory_bytes) == (4 * forward, 0)
    assert bits["fp32"] == pytest.approx(4 * forward)
    assert bits["mxfp8"] == pytest.approx(8.25 / 8 * forward)
    back = planned(graph, 4, pins={"up": (1, 1, 1), "down": (4, 1, 1)}, recipe="mxfp8").edges[0]
    assert back.sent_bytes == pytest.approx(8.25 / 8 * 16 * 256 * 3 / 4)  # the gradient, for a product


def test_at_a_price_of_memory_the_bound_is_the_best() -> None:
    """A choice that is best at some price is the best within its own memory, and the bound shows it."""
    graph = NETWORKS["alexnet"](128)
    found = small.small_tables(graph, 8, small.TWO_LEVELS)
    for price in (1e-12, 1e-11, 1e-10):
        choice = found.least({"seconds": 1.0, "memory": price}, 2**30).choice
        made = planned(graph, 8, memory=found.total("memory", choice))
        assert made.bound == pytest.approx(found.total("seconds", choice), rel=1e-5)
        assert made.seconds == pytest.approx(made.bound, rel=1e-5)


def test_layers_that_are_alike_have_sensitivities_of_their_own() -> None:
    build = Builder()
    x = Tensor((16, 256))
    for name in ("one", "two", "three", "four"):
        x = build.product(name, x, 256)
    formats = ("fp32", "mxfp8")
    numbers = {
        n: {"fp32": 0.0, "mxfp8": s} for n, s in (("one", 5.0), ("two", 5.0), ("three", 1.0), ("four", 5.0))
    }
    made = planned(build.graph(), 1, formats=formats, sensitivity=numbers, max_sensitivity=4.0)
    assert [layer.format for layer in made.layers] == ["fp32", "fp32", "mxfp8", "fp32"]


def test_what_is_kept_for_backward_is_counted_once() -> None:
    """A sum keeps nothing, products keep what they read, and two readers share it."""
    build = Builder()
    x = build.product("in", Tensor((16, 64)), 64, bias=False)
    one, two = (build.product(name, x, 64, bias=False) for name in ("one", "two"))
    build.add("add", one, two)
    memory = [layer.memory_bytes for layer in planned(build.graph(), 1).layers]
    weights, values = 16 * 64 * 64, 4 * 16 * 64
    assert memory == [weights + 2 * values, weights, weights, 0]


def test_a_price_of_sensitivity_counts_that_of_each_layer() -> None:
    build = Builder()
    x = Tensor((16, 256))
    numbers = {"one": 5.0, "two": 5.0, "three": 1.0, "four": 5.0}
    for name in numbers:
        x = build.product(name, x, 256)
    sensitivity = {name: (0.0, number) for name, number in numbers.items()}
    found = small.small_tables(build.graph(), 1, small.TWO_LEVELS, ("fp32", "mxfp8"), sensitivity)
    saved = found.layers[1].seconds[0] - found.layers[1].seconds[1]
    assert found.least({"seconds": 1.0, "sensitivity": saved / 3}, 2**30).choice == (0, 0, 1, 0)


class Numbers(nn.Module):
    """Products whose results are summed up to numbers, which a sum of two of them joins."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.other = nn.Linear(8, 8), nn.Linear(8, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.one(x).relu().sum() + self.other(x).relu().sum()


def test_a_layer_without_dimensions_is_planned() -> None:
    made = plan(Numbers(), (torch.ones(8, 8),), devices=4, compare=True)
    assert [layer.split for layer in made.layers if not layer.dimensions] == [()]
    assert "megatron" in {strategy.name for strategy in made.strategies}
