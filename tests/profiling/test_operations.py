"""Operations beside the limits of a machine, and what is said about them: numbers computed by hand."""

import itertools
import math
from collections.abc import Callable
from dataclasses import replace
from time import sleep
from typing import Any

import pytest
import torch

from fewbits.profiling import measured_limits
from fewbits.profiling.advice import advise
from fewbits.profiling.attribution import Piece
from fewbits.profiling.counting import Count
from fewbits.profiling.limits import completed
from fewbits.profiling.operations import held_to, operations, product_rate
from fewbits.records import MachineLimits, ProfiledOperation

LIMITS = MachineLimits(2, 10e9, 20e9, {"float32": 100e9, "bfloat16": 400e9}, 1e-6)
COPY = Count(5e6, 5e6, 1e6, False, "float32", False, False, False)
PRODUCT = Count(1e6, 1e6, 1e9, True, "float32", False, False, False)


@pytest.mark.parametrize(
    ("count", "seconds", "bound"),
    [
        (COPY, 1e-3, "memory"),  # 10 MB at 10 GB/s
        (
            replace(COPY, read_bytes=1e7, written_bytes=4.0),
            5.000002e-4,
            "memory",
        ),  # a sum, at the rate of reads
        (replace(COPY, read_bytes=1e7), 1.5e-3, "memory"),  # an addition of two, at the rate of a copy
        (PRODUCT, 1e-2, "compute"),
        (replace(PRODUCT, dtype="bfloat16"), 2.5e-3, "compute"),
        (replace(PRODUCT, dtype=""), 2.5e-3, "compute"),  # packed operands: the fastest units
        (replace(COPY, read_bytes=4.0, written_bytes=4.0), 1e-6, "calls"),
        (replace(COPY, read_bytes=0.0, written_bytes=0.0), 0.0, ""),  # a view moves nothing
    ],
)
def test_the_limit_is_what_takes_longest(count: Count, seconds: float, bound: str) -> None:
    assert held_to([count], LIMITS) == (pytest.approx(seconds), bound)
    assert held_to([count, count], LIMITS) == (pytest.approx(2 * seconds), bound)


def test_packed_operands_take_the_fastest_rate_and_a_dtype_without_one_has_no_limit() -> None:
    assert product_rate("float32", LIMITS) == 100e9
    assert product_rate("", LIMITS) == 400e9
    assert held_to([replace(PRODUCT, dtype="float8_e4m3fn")], LIMITS) == (pytest.approx(2e-4), "memory")


def test_short_floats_that_a_cpu_emulates_are_held_to_products_of_float32() -> None:
    emulated = replace(LIMITS, product_flops={"float32": 100e9, "bfloat16": 1e9, "float64": 50e9})
    assert product_rate("bfloat16", emulated) == 100e9
    assert product_rate("float64", emulated) == 50e9
    assert product_rate("bfloat16", LIMITS) == 400e9
    assert product_rate("float16", LIMITS) == math.inf  # nobody measured it


def test_products_that_take_long_are_measured_at_a_quarter_of_the_size(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    sides = dict[torch.dtype, list[int]]()

    def product(dtype: torch.dtype, side: int) -> Callable[[], object]:
        sides.setdefault(dtype, []).append(side)
        return lambda: sleep(0.05 if dtype == torch.bfloat16 else 1e-4)

    monkeypatch.setattr("fewbits.profiling.limits._product", product)
    completed(replace(LIMITS, product_flops={}), ["float32", "bfloat16", "float64"], size=64)
    assert {dtype: of[-1] for dtype, of in sides.items()} == {
        torch.float32: 64,
        torch.bfloat16: 16,
        torch.float64: 64,
    }


def test_the_rates_that_limits_lack_are_measured_and_the_others_stay() -> None:
    found = completed(LIMITS, ["float32", "float64", "complex64", "int8", "float4_e2m1fn_x2"], size=64)
    assert list(found.product_flops) == ["float32", "bfloat16", "float64", "complex64", "int8"]
    assert {**found.product_flops, **LIMITS.product_flops} == found.product_flops
    assert completed(LIMITS, ["float32"]) is LIMITS


def test_calls_of_a_layer_are_one_row_and_reach_a_part_of_the_limit() -> None:
    path = (("forward", "forward"),)
    pieces = [Piece("aten::mm", "forward", "fc", path, 20_000_000, PRODUCT)] * 2
    pieces += [Piece("aten::mm", "backward", "fc", path, 5_000_000, PRODUCT)]
    pieces += [Piece("Python", "forward", "fc", path, 1_000_000, is_call=False)]
    forward, backward, python = operations(pieces, LIMITS)
    assert (forward.calls, forward.seconds, forward.flops) == (2, pytest.approx(0.04), 2e9)
    assert forward.fraction == pytest.approx(0.5)
    assert backward.fraction == pytest.approx(2.0)  # above the limit: it is shown, not hidden
    assert (python.calls, python.fraction, python.bound) == (0, None, "")


def row(name: str = "aten::mm", **fields: Any) -> ProfiledOperation:
    known = ProfiledOperation(name, "forward", "fc", 1, 1.0, 1e6, 1e6, 0.5, "compute", "float32")
    return replace(known, **fields)


@pytest.mark.parametrize(
    ("operation", "says"),
    [
        (row(), "bfloat16 products are 4.0 times as fast"),
        (row(dtype="bfloat16"), "50% of the limit of bfloat16 products: give a step more samples"),
        (row(dtype="bfloat16", limit_seconds=0.9), "cannot be much faster"),
        (row(bound="memory", limit_seconds=1.3), "130% of the limit of memory: its operands lie in a"),
        (row(limit_seconds=1.3), "the limit is too low"),
        (row(limit_seconds=0.1), "too small for the units, or their threads wait"),
        (row("aten::add", bound="memory", limit_seconds=0.9), "fewer bits"),
        (row("aten::add", bound="memory", strided=True), "it reads across"),
        (row("aten::add", bound="memory"), "torch.compile"),
        (row("fewbits::quantize", kind="rounding", bound="memory", strided=True), "blocks run across"),
        (row("fewbits::quantize", kind="rounding", bound="memory"), "see `fewbits recipes`"),
        (row("aten::add", bound="calls", calls=200_000, limit_seconds=0.2), "fuse the calls"),
        (row("aten::add", bound="calls", limit_seconds=1e-6), "it waits"),
        (row("aten::add", bound="", limit_seconds=0.0, counted=False), "no limit is known"),
        (row("aten::view", bound="", limit_seconds=0.0), "moves no bytes"),
        (row("Python", calls=0, bound="", limit_seconds=0.0), "between operations"),
        (row("c10d::allreduce_", kind="communication", counted=False, limit_seconds=0.0), "by a codec"),
        (row("aten::copy_", kind="communication", bound="memory"), "as torch.compile does"),
        (row("Python", kind="data", calls=0, bound="", limit_seconds=0.0), "draw it ahead"),
        (row("waiting and Python", kind="communication", calls=0, limit_seconds=0.0), "by a codec"),
    ],
)  # fmt: skip
def test_the_advice_follows_from_what_was_measured(operation: ProfiledOperation, says: str) -> None:
    (said,) = advise([operation], 2.0, LIMITS)
    assert says in said
    assert "1000.00 ms, 50% of the step" in said


def test_a_machine_without_fast_bfloat16_is_not_told_to_take_it() -> None:
    slow = replace(LIMITS, product_flops={"float32": 100e9, "bfloat16": 10e9})
    assert "bfloat16" not in advise([row()], 2.0, slow)[0]


def test_the_worst_is_what_loses_most_to_its_limit_not_what_takes_longest() -> None:
    near, far = row("near", seconds=2.0, limit_seconds=1.9), row("far", seconds=1.0, limit_seconds=0.1)
    assert [said.split()[0] for said in advise([near, far], 3.0, LIMITS)] == ["far", "near"]
    assert len(advise([row(str(i)) for i in range(9)], 9.0, LIMITS)) == 3


def test_what_holds_an_operation_of_several_layers_is_what_holds_the_one_with_most_to_do() -> None:
    long, large = row(bound="memory", seconds=3.0, limit_seconds=0.1), row(layer="head", limit_seconds=0.9)
    assert "of float32 products" in advise([long, large], 4.0, LIMITS)[0]


def test_what_is_above_its_limit_loses_nothing_and_the_longest_of_it_is_named_first() -> None:
    short, long = row("short", seconds=1.0, limit_seconds=9.0), row("long", seconds=2.0, limit_seconds=2.1)
    slow = row("slow", seconds=1.0, limit_seconds=0.99)
    assert [said.split()[0] for said in advise([short, long, slow], 4.0, LIMITS)] == ["slow", "long", "short"]
    layers = [row("both", layer="a", limit_seconds=5.0), row("both", layer="b", limit_seconds=0.1), slow]
    assert [said.split()[0] for said in advise(layers, 3.0, LIMITS)] == ["both", "slow"]


def test_another_number_of_threads_is_named_where_it_is_faster() -> None:
    assert "take 1" in advise([row()], 1.0, LIMITS, [(2, 2.0), (1, 1.0)])[0]
    assert len(advise([row()], 1.0, LIMITS, [(2, 1.1), (1, 1.0)])) == 1  # within the noise
    assert len(advise([row()], 1.0, LIMITS, [(2, 1.0)])) == 1


def test_limits_are_bytes_and_flop_over_the_time_that_a_clock_shows(monkeypatch: pytest.MonkeyPatch) -> None:
    ticks, slept = iter(range(10_000)), list[float]()
    monkeypatch.setattr("fewbits.profiling.limits.sleep", slept.append)
    monkeypatch.setattr("fewbits.profiling.limits.perf_counter", lambda: float(next(ticks)))
    found = measured_limits(["float64"], values=1000, size=8)  # by that clock each job takes a second
    assert (found.copy_bytes, found.read_bytes) == (8000, 4000)
    assert found.product_flops == {"float32": 2 * 8**3, "bfloat16": 2 * 8**3, "float64": 2 * 8**3}
    assert found.call_seconds == 1e-3
    assert slept  # between the calls, as the benchmarks do


def test_a_limit_is_the_median_of_calls_as_in_the_benchmarks(monkeypatch: pytest.MonkeyPatch) -> None:
    taken, now = itertools.cycle([1.0, 2.0, 3.0, 3.0, 3.0, 4.0, 9.0]), itertools.count()
    clock = [0.0]

    def tick() -> float:
        clock[0] += next(taken) if next(now) % 2 else 0.0
        return clock[0]

    monkeypatch.setattr("fewbits.profiling.limits.perf_counter", tick)
    monkeypatch.setattr("fewbits.profiling.limits.sleep", lambda _: None)
    assert measured_limits(values=300, size=8).copy_bytes == 8 * 300 / 3
