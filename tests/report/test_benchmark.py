"""Reports of benchmarks say what was measured, against what, and what is no result."""

import json
import math
import re
from dataclasses import replace

import pytest

from fewbits.records import Provenance
from fewbits.report import benchmark_json, benchmark_page, benchmark_table, logs_table
from fewbits.report.columns.benchmark import ranked_results
from tests.report.benchmark import CHECKS, report
from tests.report.test_table import printed

ORIGIN = Provenance("fewbits bench", (("python", "3"),), (0, 1, 2, 3, 4))


def test_the_table_has_times_and_the_ratio_with_its_interval() -> None:
    text = printed(benchmark_table(report()), 100)
    wide, narrow = (line.split() for line in text.splitlines() if re.match(r"(fp32|mxfp6) +[\d.]+ ", line))
    row = ranked_results(report())[1]
    assert row.ratio is not None
    assert row.ratio[0] == pytest.approx(1.5 * math.prod(1 + 0.01 * k for k in range(5)) ** 0.2)
    assert wide[:2] == ["fp32", "6.00"]
    assert wide[2:5] == ["-", "-", "-"]
    assert narrow[:6] == [
        "mxfp6",
        "9.00",
        f"{row.ratio[0]:.3f}*",
        f"{row.ratio[1]:.3f}",
        f"{row.ratio[2]:.3f}",
        "900",
    ]
    assert narrow[6] == "5/5"
    assert narrow[7:] == [f"{(6.25 / 32) ** 2:.3f}", f"{6.25 / 32:.3f}"]
    assert row.verdict == "worse"


def test_what_it_is_and_is_not_is_said() -> None:
    text = " ".join(printed(benchmark_table(report(resumed=1)), 90).split())
    assert "this is no MLPerf result" in text
    assert "counted, not measured" in text
    assert "Cleared before each run: objects of earlier runs. Kept: the operating system's cache" in text
    assert "mxfp6 ran with products in mxfp6_e3m2" in text
    assert "mxfp6: 1 run was resumed; what a kill undid counts twice" in text


def test_one_failure_is_said_and_two_are_no_result() -> None:
    one = " ".join(printed(benchmark_table(report(failed=1)), 90).split())
    assert "mxfp6: 1 runs missed the target, and one of 5 counts as the slowest." in one
    two = " ".join(printed(benchmark_table(report(failed=2)), 90).split())
    assert "mxfp6: 2 runs missed the target; more than one leaves no result." in two
    assert "invalid" in two
    assert "invalid" not in one


def test_too_fast_a_convergence_and_no_baseline_are_said() -> None:
    given = report()
    fast = replace(given, recipes=(given.recipes[0], replace(given.recipes[1], too_fast=True)))
    assert "mxfp6 takes fewer samples than the runs of fp32 explain" in printed(benchmark_table(fast), 200)
    alone = replace(report(("mxfp6", "mxfp4")), recipes=report(("mxfp6", "mxfp4")).recipes[1:])
    assert "Without fp32 among the recipes nothing is compared." in printed(benchmark_table(alone), 200)
    assert ranked_results(alone)[0].wide is None


def test_json_has_every_run_and_evaluation() -> None:
    document = json.loads(benchmark_json(report(failed=2), ORIGIN))
    assert document["kind"] == "benchmark"
    wide, narrow = document["benchmark"]["recipes"]
    assert narrow["seconds"] == "inf"
    assert [run["reached"] for run in narrow["runs"]] == [False, False, True, True, True]
    assert narrow["runs"][0]["seconds_to_target"] == "inf"
    assert len(wide["runs"][4]["evaluations"]) == 10
    assert wide["runs"][4]["precision"]["linear"] == "fp32"


def test_the_page_has_a_curve_for_every_run() -> None:
    text = benchmark_page(report(), ORIGIN)
    assert 'id="quality"' in text
    for seed in range(5):
        assert f"mxfp6, seed {seed}" in text
    figure = re.search(r'data-figure="quality">(.*?)</script>', text, re.DOTALL)
    assert figure is not None
    drawn = json.loads(figure[1])["data"]
    of_seed = [(line["hovertext"][0], line["line"]["color"]) for line in drawn if "hovertext" in line]
    by_recipe = {("fp32" in name, color) for name, color in of_seed}
    assert by_recipe == {(True, "curve-0"), (False, "curve-1")}  # as the legend has them


def test_checked_logs_say_who_looked_and_are_no_results() -> None:
    text = " ".join(printed(logs_table(CHECKS), 90).split())
    assert "in MLPerf's log format; no MLPerf results" in text
    assert "official checker (mlperf-logging 4.1.68, ruleset 6.1.0) with our configuration" in text
    assert "our own rules alone: the official checker comes in spring." in text
