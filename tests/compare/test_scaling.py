"""Predicted steps: their limits against brute force, and rates that are read from reports."""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from fewbits.compare import predict_steps, read_rates
from fewbits.distributed.cost import Link, Network, reductions, step_seconds
from fewbits.errors import ArgumentError, DataError
from fewbits.recipes import codec
from fewbits.records import CodecRates, Prediction
from fewbits.report import codecs_json, scale_json
from tests.report import fake, scaling

RATES = (
    CodecRates("fp32", 0.2, 0.15, 0.1),
    CodecRates("mxfp8_e4m3", 0.5, 0.5, 0.5),
    CodecRates("mxfp4", 0.4, 0.3, 0.3),
    CodecRates("topk:density=0.01,feedback", 4.0, 0.05, 0.5),
)
CODECS = [rate.codec for rate in RATES[1:]]


def predicted(**given: Any) -> Prediction:
    usual: dict[str, Any] = {
        "parameters": 10**7, "compute_seconds": 0.1, "ranks": [2, 64], "rates": RATES, "rates_from": "a file",
    }  # fmt: skip
    return predict_steps(CODECS, **(usual | given))


def seconds(text: str, network: Network, overlap: float = 0.0) -> dict[str, float]:
    """The time of a step by each reduction."""
    rates = {rate.codec: rate for rate in RATES}
    found = reductions(codec(text), 10**7, network, rates[text], rates["fp32"])
    return {name: step_seconds(0.1, exchange, overlap) for name, exchange in found.items()}


def test_each_step_names_the_fastest_reduction_of_all_and_of_our_own() -> None:
    given = predicted(ranks=[16, 256], per_node=8, inner_gigabits=100.0, overlap=0.3)
    assert [(s.codec, s.ranks) for s in given.steps] == [
        (text, ranks) for text in ("fp32", *CODECS) for ranks in (16, 256)
    ]
    for step in given.steps:
        network = Network(step.ranks, Link(10.0, 20.0), 8, Link(100.0, 20.0))
        times = seconds(step.codec, network, 0.3)
        assert step.step_seconds == min(times.values()) == times[step.best_reduction]
        assert step.own_seconds == min(times["owners"], times["levels"]) == times[step.own_reduction]
        assert step.efficiency == 0.1 / step.step_seconds
    assert given.rates_from == "a file"


def test_limits_are_those_of_every_number_of_ranks_and_of_many_speeds() -> None:
    given = predicted(ranks=[32])

    def pays(text: str, ranks: int, gigabits: float) -> bool:
        network = Network(ranks, Link(gigabits, 20.0))
        return min(seconds(text, network).values()) < min(seconds("fp32", network).values())

    for limit in given.limits:
        for k in range(1, 21):
            within = any(low <= 2**k <= high for low, high in limit.pays_ranks)
            assert within == pays(limit.codec, 2**k, 10.0), (limit, 2**k)
    for step in given.steps[1:]:
        for k in range(-27, 45):
            speed = 1.29**k
            within = any(low <= speed <= high for low, high in step.pays_gigabits)
            near = any(abs(end / speed - 1) < 2e-3 for ends in step.pays_gigabits for end in ends)
            assert near or within == pays(step.codec, 32, speed), (step, speed)


def test_what_is_kept_stops_paying_as_ranks_grow_and_a_block_format_does_not() -> None:
    limits = {limit.codec: limit.pays_ranks for limit in predicted().limits}
    ((first, last),) = limits["mxfp8_e4m3"]
    assert (first, last >= 1 << 16) == (2, True)  # until a piece is less than a block
    ((first, last),) = limits["topk:density=0.01,feedback"]
    assert (first <= 4, 8 <= last <= 64) == (True, True)


def test_a_fast_link_stops_paying_and_free_rounding_always_pays() -> None:
    slow = next(s for s in predicted().steps if s.codec == "mxfp8_e4m3")
    ((low, high),) = slow.pays_gigabits
    assert low < 0.01
    assert 10 < high < 100
    free = [replace(rate, encode_ns=0.0, add_ns=0.0, decode_ns=0.0) for rate in RATES]
    fast = next(s for s in predicted(rates=free).steps if s.codec == "mxfp8_e4m3")
    assert fast.pays_gigabits == ((1e-3, 1e5),)


def test_hidden_messages_leave_only_rounding() -> None:
    hidden = predicted(overlap=1.0, gigabits=1000.0)
    assert all(s.step_seconds == pytest.approx(0.1 + s.codec_seconds) for s in hidden.steps)


def test_rates_are_measured_where_none_are_given() -> None:
    told: list[tuple[str, float, float]] = []
    found = predict_steps(
        ["mxfp4"], parameters=4096, compute_seconds=0.1, ranks=[2], progress=lambda *x: told.append(x)
    )
    assert [rate.codec for rate in found.rates] == ["fp32", "mxfp4"]
    assert found.rates_from == "measured here"
    assert [done for _, done, _ in told] == [1, 2]


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"parameters": 0}, "parameters='0'; expected a whole number from 1 up"),
        ({"parameters": 1.5}, "parameters='1.5'; expected a whole number from 1 up"),
        (
            {"per_node": 2**20 + 1, "inner_gigabits": 9.0},
            "per_node='1048577'; expected a whole number from 1 to",
        ),
        ({"per_node": 1.5, "inner_gigabits": 9.0}, "per_node='1.5'; expected"),
        ({"ranks": [2, 2.5]}, "ranks='2.5'; expected a whole number from 2 up"),
        ({"ranks": [True]}, "ranks='True'; expected"),
        ({"compute_seconds": 0.0}, "0 ms of compute in a step; expected a number above 0"),
        ({"compute_seconds": -0.1}, "-100 ms of compute"),
        ({"compute_seconds": "0.1"}, "compute_seconds='0.1'; expected a number"),
        ({"overlap": True}, "overlap='True'; expected a number"),
        ({"gigabits": None}, "gigabits='None'; expected a number"),
        ({"latency_us": "20"}, "latency_us='20'; expected a number"),
        ({"per_node": 2, "inner_gigabits": "9"}, "inner_gigabits='9'; expected a number"),
        ({"overlap": 1.5}, "an overlap of 1.5; expected a share"),
        ({"overlap": -0.1}, "an overlap of -0.1"),
        ({"ranks": []}, "`ranks` is empty"),
        ({"ranks": [1]}, "ranks='1'; expected a whole number from 2 up"),
        ({"gigabits": -1.0}, "a link of -1 Gbit/s"),
        ({"latency_us": -1.0}, "a latency of -1 us"),
        ({"per_node": 4}, "no link within it; give its speed"),
        ({"inner_gigabits": 100.0}, "a link within nodes, which have one rank each"),
        ({"rates": RATES[:2]}, "there are no rates of mxfp4, only of fp32, mxfp8_e4m3"),
        ({"rates": RATES[1:]}, "there are no rates of fp32"),
    ],
)
def test_what_cannot_be_predicted_is_refused(given: dict[str, Any], said: str) -> None:
    with pytest.raises(ArgumentError, match=said):
        predicted(**given)


def test_rates_are_read_from_either_report(tmp_path: Path) -> None:
    for text in (
        codecs_json([scaling.comparison()], fake.PROVENANCE),
        scale_json(scaling.prediction(), fake.PROVENANCE),
    ):
        path = tmp_path / "r.json"
        path.write_text(text)
        assert read_rates(path) == scaling.RATES


def changed(change: Callable[[Any], object]) -> str:
    document = json.loads(scale_json(scaling.prediction(), fake.PROVENANCE))
    change(document)
    return json.dumps(document)


@pytest.mark.parametrize(
    "text",
    [
        "", "[]", "{}", '{"kind": "tasks", "scores": []}', '{"kind": "codecs"}',
        '{"kind": "codecs", "comparisons": []}',
        changed(lambda d: d["prediction"]["rates"].clear()),
        changed(lambda d: d["prediction"]["rates"][0].pop("add_ns")),
        changed(lambda d: d["prediction"]["rates"][0].update(add_ns=-1)),
        changed(lambda d: d["prediction"]["rates"][0].update(add_ns="nan")),
        changed(lambda d: d["prediction"]["rates"][0].update(add_ns="fast")),
    ],
)  # fmt: skip
def test_a_file_without_rates_is_refused(text: str, tmp_path: Path) -> None:
    path = tmp_path / "r.json"
    path.write_text(text)
    with pytest.raises(DataError, match="expected what --json of `fewbits compare --codecs`"):
        read_rates(path)
