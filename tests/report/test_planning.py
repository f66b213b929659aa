"""Plans as tables and as a page."""

import json
from dataclasses import replace
from io import StringIO

import pytest

from fewbits.records import Provenance
from fewbits.report import plan_json, plan_page, plan_table
from fewbits.report.columns.planning import (
    PLAN_COLUMNS,
    STRATEGY_COLUMNS,
    about_plan,
    plan_rows,
    split_text,
    strategy_rows,
)
from fewbits.report.page.planning import _places
from tests.report.planning import record
from tests.report.test_pages import figures

ORIGIN = Provenance("fewbits plan --model m --devices 8", (("python", "3"),))


def test_a_split_names_the_dimensions_that_are_split() -> None:
    assert [split_text(layer) for layer in record().layers] == ["b 8, sharded", "n 4, k 2", "b 2", "whole"]


def test_edges_count_where_they_are_received() -> None:
    assert [round(1e4 * row.moved_seconds) for row in plan_rows(record())] == [0, 1, 1, 2]
    assert [row.sent_bytes for row in plan_rows(record())] == [1e6, 1.1e6, 1.1e6, 1.2e6]


def test_words_say_how_far_from_the_best_it_may_be() -> None:
    said = " ".join(about_plan(record()))
    assert "net on 8 devices (h100, 8 in a node), recipe fp32. A prediction" in said
    assert "at most 1.00 % of its time above the best" in said
    assert "aten.foo is not split" in said
    assert "Sensitivity: 0 of 4 allowed." in said
    best = replace(record(), bound=record().seconds)
    assert "No other plan that was allowed takes less in this model." in about_plan(best)


def test_json_has_the_plan_with_strict_numbers() -> None:
    document = json.loads(plan_json(record(), ORIGIN))
    assert document["kind"] == "plan"
    assert document["plan"]["layers"][3]["runner_up_seconds"] == "inf"
    assert document["plan"]["machine"]["flops"] == {"fp32": 1e13}
    assert document["plan"]["gap"] == pytest.approx(0.01)


def test_a_strategy_over_the_cap_is_marked() -> None:
    over = replace(record(), strategies=(replace(record().strategies[0], fits=False),))
    said = [STRATEGY_COLUMNS[-1].text(row) for row in strategy_rows(over)]
    assert said == ["kept", "over"]
    assert json.loads(plan_json(over, ORIGIN))["plan"]["strategies"][0]["fits"] is False


def test_short_times_and_one_device_read_well() -> None:
    layers = tuple(replace(layer, compute_seconds=3.21e-7) for layer in record().layers)
    small = replace(record(), devices=1, layers=layers)
    compute = next(c for c in PLAN_COLUMNS if c.title == "compute (ms)")
    assert [compute.text(row) for row in plan_rows(small)] == ["0.00032"] * 4
    assert "net on 1 device (" in about_plan(small)[0]


def test_sums_of_siblings_are_told_beside_megatron() -> None:
    other = replace(record(), strategies=(replace(record().strategies[0], name="megatron"),))
    assert sum("Megatron's own adds the parts first" in line for line in about_plan(other)) == 1
    alone = replace(other, edges=other.edges[1:])
    assert not any("Megatron" in line for plan in (record(), alone) for line in about_plan(plan))


def test_formats_of_layers_without_products_are_said() -> None:
    assert "recipe fp32." in about_plan(replace(record(), others="fp32"))[0]
    assert "recipe fp32, layers without products bf16." in about_plan(replace(record(), others="bf16"))[0]


def test_the_table_has_a_row_for_each_layer() -> None:
    from rich.console import Console

    console = Console(width=200, record=True, file=StringIO())
    console.print(plan_table(record()))
    shown = console.export_text()
    assert shown.count("very_long_name_of_a_projection") == 4
    assert "data parallel" in shown


def test_the_page_draws_each_layer_in_the_colour_of_its_split() -> None:
    pytest.importorskip("plotly")
    page = plan_page(record(), ORIGIN)
    assert page == plan_page(record(), ORIGIN)
    drawn = figures(page)
    lines, *marks = drawn["network"]["data"]
    assert [len(m["x"]) for m in marks] == [2, 1, 1]  # b; n and k; whole
    assert len({m["marker"]["color"] for m in marks}) == 3
    assert len(lines["x"]) == 3 * 4
    assert drawn["breakdown"]["data"][0]["x"] == pytest.approx([1.0, 9.0])


def test_layers_stand_below_all_that_they_wait_for() -> None:
    depths, lanes = _places(record())
    assert depths == [0, 1, 1, 2]
    assert lanes == [0, -0.5, 0.5, 0]
