"""``fewbits profile``."""

import json
import os
import socket
from contextlib import redirect_stdout
from io import StringIO
from pathlib import Path
from typing import Any
from unittest import mock

import pytest

from fewbits.cli.main import run
from fewbits.records import MachineLimits
from tests.processes import run as run_processes

pytest.importorskip("sklearn", reason="scikit-learn (fewbits[tasks]) is not installed")
STEPS = ["--steps", "2"]
LIMITS = MachineLimits(1, 1e10, 1e10, {"float32": 1e11, "bfloat16": 1e11}, 1e-6)
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
    monkeypatch.setattr("fewbits.profiling.profiled.measured_limits", lambda dtypes: LIMITS)
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


@pytest.mark.usefixtures("copied_processes")
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


def _of_torchrun(rank: int, folder: str) -> None:
    """Do what a process does that torchrun started."""
    place = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": (Path(folder) / "port").read_text()}
    os.environ |= place | {"RANK": str(rank), "WORLD_SIZE": "2", "GLOO_SOCKET_IFNAME": "lo"}
    measured = mock.patch("fewbits.profiling.profiled.measured_limits", return_value=LIMITS)
    with measured, redirect_stdout(StringIO()) as said:
        code = run(["profile", "--task", "digits", *STEPS, "--json", f"{folder}/{rank}.json"])
    (Path(folder) / f"said-{rank}").write_text(f"{code}{said.getvalue()}")


def test_under_torchrun_processes_profile_one_step_and_the_first_tells_of_it(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        (tmp_path / "port").write_text(str(server.getsockname()[1]))
    run_processes(_of_torchrun, tmp_path, 2, 240)
    (found,) = profiles(tmp_path / "0.json")
    assert found["processes"] == 2
    assert found["seconds_of"]["communication"] > 0
    assert "communication" in (tmp_path / "said-0").read_text()
    assert (tmp_path / "said-1").read_text() == "0"
    assert not (tmp_path / "1.json").exists()


def test_what_torchrun_did_not_start_is_refused(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.setenv("RANK", "0")
    assert run(["profile", "--function", "nowhere:step"]) == 2
    assert "--function is a step of one process, and torchrun started 2" in capsys.readouterr().err
    assert run(["profile", "--processes", "4"]) == 2
    assert "--processes 4 where torchrun started 2" in capsys.readouterr().err


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
