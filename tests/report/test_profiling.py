"""Tables, JSON and pages of profiles."""

import json
import re
from dataclasses import replace
from typing import Any

import pytest

from fewbits.report import profile_json, profile_page, profile_table
from fewbits.report.columns.profiling import class_rows, layer_rows, operation_rows
from tests.report import fake, profiling
from tests.report.test_table import printed

PROFILE = profiling.record()


def test_rows_add_up_to_the_step_however_they_are_grouped() -> None:
    assert sum(r.seconds[0] for r in class_rows([PROFILE])) == pytest.approx(PROFILE.seconds)
    assert sum(r.total for r in layer_rows(PROFILE)) == pytest.approx(PROFILE.seconds)
    assert sum(r.seconds for r in operation_rows(PROFILE)) == pytest.approx(PROFILE.seconds)


def test_the_table_says_what_a_step_takes_and_what_the_profiler_adds() -> None:
    text = " ".join(printed(profile_table([PROFILE]), 120).split())
    assert (
        "a step takes 8.00 ms by the clock, and 12.0 ms under the profiler (1.50 times). Shown are 10.0 ms"
        in text
    )
    assert "medians of 8 steps, of 10 that are not alike, part by part. 98.0 % of it has a class." in text
    assert "copies 20.0 GB/s, reads 25.0 GB/s; products in GFLOP/s: float32 100, bfloat16 400" in text
    assert "fewbits::rounded_product, rounding inside" in text
    assert "Products that round their operands inside take 2.50 ms" in text
    assert "Other threads worked 0.40 ms beside this one." in text
    assert "1. fewbits::fake_quantize (rounding)" in text


def test_the_table_says_how_much_of_a_step_was_not_counted() -> None:
    assert "not found among the counted" not in printed(profile_table([PROFILE]), 120)
    first, *others = PROFILE.operations
    unknown = replace(PROFILE, operations=(replace(first, counted=False, limit_seconds=0.0), *others))
    text = " ".join(printed(profile_table([unknown]), 120).split())
    assert "30.0 % of it are calls that were not found among the counted ones" in text


def test_a_row_has_rates_and_its_part_of_the_limit() -> None:
    lines = printed(profile_table([PROFILE]), 140).splitlines()
    product = next(line.split() for line in lines if line.startswith("aten::mm"))
    assert product == ["aten::mm", "forward", "3", "3.00", "30.0", "0.3", "200.0", "50", "compute"]
    in_cache = next(line.split() for line in lines if line.startswith("aten::add_"))
    assert in_cache[-2:] == ["200", "memory"]
    python = next(line.split() for line in lines if line.startswith("Python ") and " forward " in line)
    assert python[2:] == ["-", "0.20", "2.00", "-", "-", "-", "-"]


def test_two_recipes_stand_beside_each_other_in_one_table() -> None:
    text = printed(profile_table(profiling.beside()), 120)
    rounding = next(line for line in text.splitlines() if line.startswith("rounding"))
    assert rounding.split() == ["rounding", "0", "0", "1.50", "15.0"]


def test_a_class_that_takes_no_time_has_no_row_and_the_rest_always_has_one() -> None:
    kinds = [row.kind for row in class_rows(profiling.beside()[:1])]
    assert "rounding" not in kinds
    assert kinds[-1] == "Python and the rest"


def test_json_has_every_operation_with_its_part_of_the_limit() -> None:
    document = json.loads(profile_json([PROFILE], fake.PROVENANCE))
    assert document["kind"] == "profile"
    (found,) = document["profiles"]
    assert len(found["operations"]) == len(PROFILE.operations)
    assert found["operations"][0]["fraction"] == 0.5
    assert found["operations"][5]["fraction"] is None
    assert found["accounted"] == pytest.approx(0.98)
    assert found["limits"]["product_flops"] == {"float32": 1e11, "bfloat16": 4e11}


def figures(text: str) -> dict[str, Any]:
    found = re.findall(r'data-figure="([\w-]+)">(.*?)</script>', text, re.DOTALL)
    return {name: json.loads(data) for name, data in found}


def test_the_page_has_a_donut_a_roofline_and_a_flame_for_each_profile() -> None:
    page = profile_page(profiling.beside(), fake.PROVENANCE)
    assert set(figures(page)) == {f"{name}-{i}" for name in ("donut", "roofline", "flame") for i in (0, 1)}


def test_the_roofline_has_the_roof_of_reads_that_rows_are_held_to() -> None:
    lines = figures(profile_page([PROFILE], fake.PROVENANCE))["roofline-0"]["data"]
    (reads,) = [of for of in lines if of["hovertext"][0] == "the limit of reads"]
    rates = [1e9 * y / x for x, y in zip(reads["x"], reads["y"], strict=True)]
    assert rates == pytest.approx([PROFILE.limits.read_bytes] * 2)
    assert reads["y"][-1] == pytest.approx(400)  # up to the fastest products


def test_the_roofline_has_each_operation_at_what_it_reaches() -> None:
    marks = figures(profile_page([PROFILE], fake.PROVENANCE))["roofline-0"]["data"]
    found = sorted(
        place for of in marks if of["mode"] == "markers" for place in zip(of["x"], of["y"], strict=True)
    )
    counted = [o for o in PROFILE.operations if o.flops and o.moved_bytes and o.seconds]
    assert counted
    wanted = sorted((o.flops / o.moved_bytes, o.flops / o.seconds / 1e9) for o in counted)
    assert found == [pytest.approx(place) for place in wanted]


def test_no_part_of_the_flame_is_more_than_what_is_around_it() -> None:
    (data,) = figures(profile_page([PROFILE], fake.PROVENANCE))["flame-0"]["data"]
    values = dict(zip(data["ids"], data["values"], strict=True))
    assert all(isinstance(v, int) for v in values.values())
    for parent, whole in values.items():
        parts = [values[i] for i, p in zip(data["ids"], data["parents"], strict=True) if p == parent]
        assert sum(parts) <= whole
