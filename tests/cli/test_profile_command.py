"""``fewbits profile``."""

import json
from pathlib import Path
from typing import Any

import pytest

from fewbits.cli.main import run
from fewbits.records import MachineLimits

pytest.importorskip("sklearn", reason="scikit-learn (fewbits[tasks]) is not installed")
STEPS = ["--steps", "2"]
OWN = """
import torch
model = torch.nn.Linear(8, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

def step():
    optimizer.zero_grad()
    model(torch.ones(3, 8)).sum().backward()
    optimizer.step()
"""


@pytest.fixture(autouse=True)
def known_limits(monkeypatch: pytest.MonkeyPatch) -> None:
    limits = MachineLimits(1, 1e10, 1e10, {"float32": 1e11, "bfloat16": 1e11}, 1e-6)
    monkeypatch.setattr("fewbits.profiling.profiled.measured_limits", lambda dtypes: limits)
    monkeypatch.setenv("COLUMNS", "120")


def profiles(path: Path) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads(path.read_text("utf-8"))["profiles"]
    return found


def test_a_step_of_a_task_by_a_recipe(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    data, page, trace = tmp_path / "r.json", tmp_path / "r.html", tmp_path / "t.json"
    given = ["profile", "--task", "digits", "--recipe", "mxfp8", *STEPS]
    given += ["--json", str(data), "--report", str(page), "--trace", str(trace)]
    assert run(given) == 0
    shown = capsys.readouterr().out
    assert "fewbits::fake_quantize" in shown
    assert "Python and the rest" in shown
    (found,) = profiles(data)
    assert (found["task"], found["recipe"], found["processes"]) == ("digits", "mxfp8", 1)
    assert found["seconds_of"]["rounding"] > 0
    assert {o["layer"] for o in found["operations"]} >= {"conv1", "conv2", "conv3", "head", ""}
    assert 'data-figure="flame-0"' in page.read_text("utf-8")
    assert "fewbits::fake_quantize" in trace.read_text("utf-8")
    assert run(given) == 0  # all three may be written again


def test_two_recipes_beside_each_other(tmp_path: Path) -> None:
    data = tmp_path / "r.json"
    assert run(["profile", "--task", "digits", "--compare", "fp32,mxfp8", *STEPS, "--json", str(data)]) == 0
    plain, narrow = profiles(data)
    assert (plain["recipe"], narrow["recipe"]) == ("fp32", "mxfp8")
    assert plain["seconds_of"]["rounding"] == 0 < narrow["seconds_of"]["rounding"]


def test_a_step_of_ones_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "own_profiled.py").write_text(OWN)
    monkeypatch.chdir(tmp_path)
    assert run(["profile", "--function", "own_profiled:step", *STEPS, "--json", "r.json"]) == 0
    (found,) = profiles(Path("r.json"))
    assert (found["task"], found["recipe"]) == ("own_profiled:step", "")
    seconds = found["seconds_of"]
    assert min(seconds["forward"], seconds["backward"], seconds["optimizer"]) > 0


def test_two_processes_show_what_they_wait_for(tmp_path: Path) -> None:
    data = tmp_path / "r.json"
    given = [
        "profile",
        "--task",
        "digits",
        "--processes",
        "2",
        "--codec",
        "mxfp8_e4m3",
        *STEPS,
        "--json",
        str(data),
    ]
    assert run(given) == 0
    (found,) = profiles(data)
    assert found["processes"] == 2
    assert found["seconds_of"]["communication"] > 0
    names = {o["name"] for o in found["operations"] if o["kind"] == "communication"}
    assert any(name.startswith("c10d::") for name in names)
    assert "waiting and Python" in names
    rounding = {o["name"] for o in found["operations"] if o["kind"] == "rounding"}  # of the codec
    assert "fewbits::quantize_flat" in rounding


@pytest.mark.parametrize(
    ("given", "says"),
    [
        (["--recipe", "mxfp5"], "mxfp5"),
        (["--task", "nothing"], "there is no task 'nothing'"),
        (["--function", "nowhere:step"], "there is no module 'nowhere'"),
        (["--function", "nowhere:step", "--recipe", "fp32"], "--recipe does nothing for --function"),
        (["--compare", "fp32,mxfp8", "--recipe", "fp32"], "--recipe does nothing for --compare"),
        (["--codec", "mxfp8_e4m3"], "--codec is of several processes"),
        (["--compare", "none"], "there is nothing to compare"),
        (["--steps", "0"], "--steps"),
    ],
)
def test_wrong_input_is_told_in_one_line(
    given: list[str], says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["profile", *given]) == 2
    told = capsys.readouterr().err
    assert says in told
    assert told.count("\n") == 1


def test_a_trace_does_not_take_the_place_of_another_file(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    other = tmp_path / "config.json"
    other.write_text('{"hidden": 3}')
    assert run(["profile", "--task", "digits", "--trace", str(other)]) == 2
    assert "not a trace of PyTorch's profiler" in capsys.readouterr().err
    assert other.read_text() == '{"hidden": 3}'
