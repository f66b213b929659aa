"""``fewbits bench``."""

import json
import re
import shlex
from dataclasses import replace
from pathlib import Path

import pytest

from fewbits.bench import BENCHMARKS, benchmark
from fewbits.cli.main import run

ROOT = Path(__file__).parents[2]
GIVEN = ["bench", "--recipe", "fp32,mxfp6", "--task", "tests.bench.small:easy"]


def test_it_measures_logs_checks_and_resumes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "measured"
    given = [
        *GIVEN,
        "--out",
        str(out),
        "--json",
        str(tmp_path / "a.json"),
        "--report",
        str(tmp_path / "a.html"),
    ]
    assert run(given) == 0
    shown = capsys.readouterr().out
    assert "points: time to quality" in shown
    assert "no MLPerf result" in shown
    document = json.loads((tmp_path / "a.json").read_text())["benchmark"]
    assert [len(r["runs"]) for r in document["recipes"]] == [3, 3]
    assert 'id="quality"' in (tmp_path / "a.html").read_text()
    assert sorted(p.name for p in (out / "logs" / "mxfp6").iterdir()) == [
        "config.json", "result_0.txt", "result_1.txt", "result_2.txt"
    ]  # fmt: skip
    assert run(["bench", "--check", str(out)]) == 0
    assert "ruleset 6.1.0" in capsys.readouterr().out
    assert run(given) == 2
    assert "--resume" in capsys.readouterr().err
    assert run([*given, "--resume"]) == 0
    assert json.loads((tmp_path / "a.json").read_text())["benchmark"] == document
    log = out / "logs" / "mxfp6" / "result_0.txt"
    log.write_text(log.read_text().replace('"value": "mxfp6"', '"value": "mxfp4"'))
    assert run(["bench", "--check", str(out)]) == 1
    assert "claims mxfp4, and mxfp6_e3m2 ran" in capsys.readouterr().err


def test_more_runs_than_a_result_takes_are_windows(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(ROOT))
    monkeypatch.chdir(tmp_path)
    assert run(["bench", "--recipe", "fp32", "--task", GIVEN[-1], "--runs", "4", "--json", "a.json"]) == 0
    (result,) = json.loads(Path("a.json").read_text())["benchmark"]["recipes"]
    times = [r["seconds"] for r in result["runs"]]
    assert result["seconds"] == pytest.approx((sorted(times[:3])[1] + sorted(times[1:])[1]) / 2)
    assert not (tmp_path / "fewbits-bench" / "logs").exists()


def test_the_commands_of_the_manual_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    small = replace(benchmark(GIVEN[-1]), name="digits")
    monkeypatch.setitem(BENCHMARKS, "digits", small)  # which takes milliseconds
    monkeypatch.chdir(tmp_path)
    page = (ROOT / "docs" / "benchmarking.md").read_text("utf-8")
    commands = re.findall(r"^fewbits (bench .*)$", page, re.MULTILINE)
    assert len(commands) == 3
    for command in commands:
        assert run(shlex.split(command)) == 0, command
    assert (tmp_path / "measured.html").exists()
    page = page.replace("\n", " ")
    for name, own in BENCHMARKS.items():
        assert own is small or f"`{name}` | " in page
        assert own is small or f" {own.target:g}" in page


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (["--recipe", "mxfp5"], "the nearest are"),
        (["--recipe", "none"], "there is nothing to measure"),
        (["--task", "digit"], "expected digits, mnist10k, bytes, lstm or MODULE:FUNCTION"),
        (["--runs", "4"], "4 runs where a result of digits takes 5"),
        (["--codec", "fp32"], "--codec is of several processes"),
        (["--recipe", "posit8", "--out", "x"], "format posit8_1 has no name in the list"),
        (["--check", "gone"], "does not exist"),
        (["--check", ".", "--runs", "5"], "--runs does nothing for --check"),
        (["--check", "."], "holds no logs"),
    ],
)
def test_bad_input_is_one_line(
    given: list[str],
    said: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    assert run(["bench", *given]) == 2
    error = capsys.readouterr().err.strip().splitlines()[-1]
    assert error.startswith("fewbits: ")
    assert said in error
