"""Figures are set beside their bars as the rows of a benchmark say, and the page says what was measured."""

import json
import runpy
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "benchmarks"))
import bars  # noqa: E402

TOOL = runpy.run_path(str(ROOT / "tools" / "speed_page.py"), run_name="tool")


def quantize_row(name: str, parts: float) -> dict[str, Any]:
    return {
        "format": name,
        "of_limit": dict.fromkeys(("fake", "stochastic", "quantize", "dequantize"), parts),
    }


def measured(figures: list[bars.Figure]) -> dict[str, Any]:
    """What a run writes of one benchmark with one instruction set."""
    run = {
        "machine": {"command": "python benchmarks/quantize.py"},
        "figures": [f._asdict() for f in figures],
    }
    machine = {"cpu": "Some CPU", "family": "6", "model": "1", "cores": 2, "units": ["avx2"]}
    return {"machine": machine, "benchmarks": {"quantize": {"avx2": run}}}


def test_each_operation_of_a_block_format_has_its_bar() -> None:
    rows = [quantize_row("mxfp4", 0.8), quantize_row("posit8_1", 0.1)]
    assert {(f.subject, f.measure, f.bar) for f in bars.figures("quantize", rows, "avx512")} == {
        ("mxfp4", "nearest", 0.95),
        ("mxfp4", "stochastic", 0.9),
        ("mxfp4", "quantize", 0.9),
        ("mxfp4", "dequantize", 0.9),
    }
    for isa in ("avx2", "avx2_vnni"):
        assert {f.bar for f in bars.figures("quantize", rows, isa)} == {0.7}


def test_a_time_has_reached_its_bar_from_below() -> None:
    assert bars.Figure("a", "seconds", 20.0, 25.0, at_most=True).of_bar == 1.25
    assert bars.Figure("a", "times", 20.0, 25.0, at_most=False).of_bar == 0.8


def test_a_row_without_the_value_gives_no_figure() -> None:
    rows = [{"format": "mxint8", "of_float32": 2.0, "of_bfloat16": None}]
    assert [f.measure for f in bars.figures("matmul", rows, "avx512_vnni")] == ["times float32"]
    assert bars.figures("matmul", rows, "avx2") == []  # no units to be compared with


def test_a_row_that_lacks_what_its_bar_reads_is_a_mistake() -> None:
    with pytest.raises(KeyError, match="of_float32"):
        bars.figures("matmul", [{"format": "mxint8", "of_bfloat16": None}], "avx512_vnni")


@pytest.mark.parametrize(("path", "bar"), [("fp32:5", 1.8), ("fp32:-1 fp64:0", 0.97)])
def test_a_system_that_was_solved_in_double_has_the_lower_bar(path: str, bar: float) -> None:
    rows = [{"n": 4000, "matrix": "normal", "of_torch": 1.0, "path": path}]
    assert [f.bar for f in bars.figures("solve_dense", rows, "avx2")] == [bar]


@pytest.mark.parametrize(
    ("path", "bar"), [("bf16:3", 4.0), ("bf16:-1 bf16x2:7", 2.5), ("bf16:-1 fp32:-1 fp64:0", 0.97)]
)
def test_tiles_ask_more_of_a_system_that_one_term_solves(path: str, bar: float) -> None:
    rows = [{"n": 8000, "matrix": "normal", "of_torch": 1.0, "path": path}]
    assert [f.bar for f in bars.figures("solve_dense", rows, "amx")] == [bar]


def test_a_cpu_whose_tiles_are_hidden_has_a_file_of_its_own() -> None:
    own = {"cpu": "Some(R) CPU @ 2 GHz", "family": 6, "model": 1, "units": ["avx2"]}
    file_name = runpy.run_path(str(ROOT / "benchmarks" / "_machine.py"))["file_name"]
    assert file_name(own) == "some-family6-model1"
    assert file_name({**own, "units": ["avx2", "amx_bf16"]}) == "some-family6-model1-amx"


def test_conjugate_gradients_are_judged_by_the_fastest_precision_on_the_large_grid() -> None:
    rows = [
        {"side": side, "precision": precision, "of_scipy": 12.0, "fastest": precision == "scaled_fp16"}
        for side in (96, 192)
        for precision in ("double", "scaled_fp16")
    ]
    found = [(f.subject, f.bar) for f in bars.figures("solve_krylov", rows, "avx2")]
    assert found == [("conjugate gradients, 192^3, scaled_fp16", 10.0)]
    text = (ROOT / "benchmarks" / "solve_krylov.py").read_text("utf-8")
    assert all(f'"{key}":' in text for key in rows[0])  # what the bar reads is what the benchmark writes


def test_an_all_reduce_of_blocks_between_four_processes_is_judged_on_each_link() -> None:
    rows = [
        {"codec": codec, "ranks": ranks, "link": link, "times_gloo": 2.0}
        for codec in ("fp32", "mxfp8_e4m3", "int8_256", "int8_256:feedback", "mxfp4")
        for ranks in (2, 4)
        for link in ("loopback", "1", "5")
    ]
    assert {(f.subject, f.measure, f.bar) for f in bars.figures("all_reduce", rows, "avx2")} == {
        ("mxfp8_e4m3", "times gloo's float32, loopback", 1.3),
        ("int8_256", "times gloo's float32, loopback", 1.3),
        ("mxfp8_e4m3", "times gloo's float32, 1 Gbit/s", 3.3),
        ("int8_256", "times gloo's float32, 1 Gbit/s", 3.3),
        ("mxfp4", "times gloo's float32, 1 Gbit/s", 6.0),
    }
    text = (ROOT / "benchmarks" / "all_reduce.py").read_text("utf-8")
    assert all(f'"{key}":' in text for key in rows[0])
    assert 'LOOPBACK = "loopback"' in text


def test_a_figure_that_misses_its_bar_is_bold() -> None:
    figures = [
        bars.Figure("mxfp4", "nearest", 0.94, 0.95, at_most=False),
        bars.Figure("mxfp4", "quantize", 0.95, 0.95, at_most=False),
        bars.Figure("mxfp4", "seconds", 26.0, 25.0, at_most=True),
        bars.Figure("mxfp6", "seconds", 25.0, 25.0, at_most=True),
    ]
    lines = TOOL["page"](f"Prose.\n\n{TOOL['START']}\nold", [measured(figures)]).splitlines()
    assert "| | nearest, avx2 | quantize, avx2 | seconds, avx2 |" in lines
    assert "| *bar* | *0.95* | *0.95* | *25* |" in lines
    assert "| mxfp4 | **0.94** | 0.95 | **26.00** |" in lines
    assert "| mxfp6 |  |  | 25.00 |" in lines
    assert lines[0] == "Prose."
    assert "old" not in lines


def test_the_page_is_what_was_measured() -> None:
    text = TOOL["PAGE"].read_text("utf-8")
    assert TOOL["page"](text, TOOL["read"]()) == text, "run python tools/speed_page.py"


def test_a_page_that_was_changed_by_hand_would_be_seen() -> None:
    text = TOOL["PAGE"].read_text("utf-8")
    assert TOOL["page"](text + "| mxfp4 | 2.00 |\n", TOOL["read"]()) != text + "| mxfp4 | 2.00 |\n"


def test_what_was_measured_has_the_figures_of_its_rows() -> None:
    for path in sorted(TOOL["MEASURED"].glob("*.json")):
        told = json.loads(path.read_text("utf-8"))
        for name, runs in told["benchmarks"].items():
            for isa, run in runs.items():
                assert run["figures"] == [f._asdict() for f in bars.figures(name, run["rows"], isa)], (
                    name,
                    isa,
                )
                if "gpu" in told["machine"]:
                    assert (run["machine"]["gpu"], isa) == (told["machine"]["gpu"]["name"], "triton")
                else:
                    assert run["machine"]["isa"] == isa
