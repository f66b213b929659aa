"""Solved systems, in the terminal and as a page."""

import io
import math

from rich.console import Console

from fewbits.records import Provenance, SolveScore, Stage
from fewbits.report import history_plot, solve_page, solve_table, stages_table

LEFT = Stage("bf16", "LU", -50, 8, 0.5, 0.25, "GMRES <stagnated>", (1e-3, 1e-4, math.nan))
LAST = Stage("fp64", "LU", 0, 0, 1.0, 0.125, "", (1e-17,))
SCORE = SolveScore(
    "A.mtx", 100, "bf16", (LEFT, LAST), 0, 1e-17, 1e9, 2.0, 0.75, 1e-15, "|b - A x| / (|A| |x|)"
)


def shown(*parts: object) -> str:
    console = Console(width=120, record=True, file=io.StringIO())
    console.print(*parts)
    return console.export_text()


def test_the_tables_tell_the_path_and_the_reasons() -> None:
    assert SCORE.path == ("bf16: -50", "fp64: 0")
    assert "bf16: left, fp64: 0" in shown(solve_table([SCORE]))
    stages = shown(stages_table([SCORE]))
    row = next(line for line in stages.splitlines() if line.split()[:1] == ["bf16"]).split()
    assert row[:5] == ["bf16", "bf16", "LU", "-", "8"]  # no code stands where steps are counted
    assert "bf16: bf16 was left, GMRES <stagnated>" in stages


def test_bars_are_logarithms_and_the_goal_is_marked() -> None:
    lines = [line for line in shown(history_plot(SCORE)).splitlines() if "e-" in line or "nan" in line][1:]
    bars = [line.count("#") for line in lines]
    assert bars == [40, 37, 48, 3]
    assert all("|" in line for line in lines)


def test_long_histories_are_cut_and_say_so() -> None:
    stage = Stage("bf16", "LU", 40, 0, 0.1, 0.1, "", tuple(10.0**-i for i in range(1, 41)))
    score = SolveScore("A", 4, "bf16", (stage,), 40, 0.0, 1.0, 1.0, None, 1e-15, "|b - A x| / (|A| |x|)")
    lines = shown(history_plot(score)).splitlines()
    assert sum("1.0e-" in line for line in lines) - 1 == 20  # of 40 every second
    assert "1.0e-40" in shown(history_plot(score))


def test_the_page_escapes_and_says_how_to_measure_again() -> None:
    page = solve_page([SCORE], Provenance("fewbits solve A.mtx", (), ()), base_command="fewbits solve A.mtx")
    assert "GMRES &lt;stagnated&gt;" in page
    assert "fewbits solve A.mtx --precision bf16" in page
    assert 'id="residuals"' in page


def test_a_page_without_residuals_has_no_plot() -> None:
    bare = Stage("fp64", "LU", 0, 0, 1.0, 0.1, "", ())
    page = solve_page(
        [SolveScore("A", 4, "fp64", (bare,), 0, 0.0, 1.0, 1.0, None, 1e-15, "|b - A x| / (|A| |x|)")],
        Provenance("fewbits", (), ()),
    )
    assert 'id="residuals"' not in page
