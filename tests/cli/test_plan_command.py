"""``fewbits plan``."""

import json
from pathlib import Path

import pytest

from fewbits.cli.main import run
from fewbits.planner import NETWORKS, Plan, plan
from fewbits.planner.planned import load_machine
from fewbits.records import Machine, MachineLink

ALEXNET = ["plan", "--model", "alexnet", "--devices", "8"]


def test_a_network_is_planned_shown_and_written(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "160")
    data, page = tmp_path / "p.json", tmp_path / "p.html"
    assert run([*ALEXNET, "--compare", "--json", str(data), "--report", str(page)]) == 0
    shown = " ".join(capsys.readouterr().out.split())
    for text in ("n 4, k 2", "one weird trick", "megatron", "No other plan that was allowed takes less"):
        assert text in shown
    made = plan(NETWORKS["alexnet"](128), devices=8, compare=True, name="alexnet")
    assert Plan.load(data) == made
    assert json.loads(data.read_text())["provenance"]["command"].startswith("fewbits")
    assert 'data-figure="network"' in page.read_text()
    assert run([*ALEXNET, "--reuse", str(data), "--json", str(data)]) == 2  # no output replaces an input
    again = tmp_path / "q.json"
    assert run([*ALEXNET, "--reuse", str(data), "--json", str(again), "--machine", "a100"]) == 0
    assert [a.split for a in Plan.load(again).layers] == [a.split for a in made.layers]
    assert Plan.load(again).seconds > made.seconds


def test_json_has_the_totals_that_are_shown(tmp_path: Path) -> None:
    data = tmp_path / "p.json"
    assert run([*ALEXNET, "--json", str(data)]) == 0
    found = json.loads(data.read_text())["plan"]
    for total in ("link_seconds", "sent_bytes", "memory_bytes"):
        assert found[total] == pytest.approx(sum(x[total] for x in found["layers"] + found["edges"]))
    assert found["compute_seconds"] == pytest.approx(found["seconds"] - found["link_seconds"])
    assert found["gap"] == 0 == found["sensitivity"]


def test_the_best_plan_within_pins_or_of_a_reused_one_is_not_called_the_best_of_all(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pinned, best = tmp_path / "p.json", plan(NETWORKS["alexnet"](128), devices=8)
    for given in (["--pin", "*:b=1", "--json", str(pinned)], ["--reuse", str(pinned)]):
        assert run([*ALEXNET, *given]) == 0
        shown = " ".join(capsys.readouterr().out.split())
        assert "No other plan that was allowed takes less in this model." in shown
    assert Plan.load(pinned).seconds > best.seconds


def test_options_reach_the_search(tmp_path: Path) -> None:
    data, numbers = tmp_path / "p.json", tmp_path / "s.json"
    products = [layer.name for layer in NETWORKS["alexnet"](64).layers if layer.product]
    numbers.write_text(json.dumps({name: {"fp32": 0, "mxfp8": 1} for name in products}))
    given = ["--batch", "64", "--formats", "fp32,mxfp8", "--sensitivity", str(numbers)]
    given += ["--max-sensitivity", "3", "--memory", "2G", "--codec", "mxfp8_e4m3"]
    given += ["--pin", "fc1:b=2,fc1:n=4", "--forbid", "conv*:n", "--json", str(data)]
    assert run([*ALEXNET, *given]) == 0
    made = Plan.load(data)
    split = {layer.name: dict(zip(layer.dimensions, layer.split, strict=True)) for layer in made.layers}
    assert split["fc1"] == {"b": 2, "n": 4, "k": 1}
    assert all(split[f"conv{i}"]["n"] == 1 for i in range(1, 6))
    assert made.sensitivity == 3
    assert (made.recipe, made.codec, made.memory_cap) == ("fp32,mxfp8", "mxfp8_e4m3", 2e9)
    assert run([*ALEXNET, "--memory", "none", "--json", str(tmp_path / "n.json")]) == 0
    assert Plan.load(tmp_path / "n.json").memory_cap is None


def test_this_computer_is_measured_as_a_machine(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    measured = Machine("this computer", {"fp32": 1e11}, (MachineLink(8.0, 50.0),), 8e9, 1, 1e10)
    monkeypatch.setattr("fewbits.planner.measuring.measured_machine", lambda: measured)
    path = tmp_path / "m.json"
    assert run(["plan", "--measure", str(path)]) == 0
    assert "fp32 100 GFLOP/s; 8.0 Gbit/s" in capsys.readouterr().out
    assert load_machine(path) == measured
    assert run(["plan", "--measure", str(path)]) == 0  # it may be measured again
    data = tmp_path / "p.json"
    assert run([*ALEXNET, "--machine", str(path), "--json", str(data)]) == 0
    assert Plan.load(data).machine == measured
    assert run([*ALEXNET, "--machine", str(path), "--json", str(path)]) == 2  # no output replaces an input
    assert "which is read; give another name" in capsys.readouterr().err
    assert load_machine(path) == measured


@pytest.mark.slow
def test_measuring_takes_seconds_and_gives_a_machine() -> None:
    from fewbits.planner.measuring import measured_machine

    made = measured_machine()
    assert made.flops["fp32"] > 1e9
    assert 0.1 < made.links[0].gigabits < 1000
    assert made.memory > 1e9


def test_a_model_of_ones_own_is_captured(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "own_plan.py").write_text(
        "import torch\n"
        "def load():\n"
        "    model = torch.nn.Sequential(torch.nn.Linear(64, 128), torch.nn.Linear(128, 8))\n"
        "    return model, [torch.zeros(16, 64)]\n"
    )
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    assert run(["plan", "--model", "own_plan:load", "--devices", "2"]) == 0
    assert "own_plan:load on 2 devices" in " ".join(capsys.readouterr().out.split())
    assert run(["plan", "--model", "own_plan:load", "--devices", "2", "--batch", "4"]) == 2


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ([], "give --model and --devices"),
        (["--model", "alexnet"], "give --model and --devices"),
        (["--model", "alexnets", "--devices", "8"], "--model 'alexnets'; expected alexnet"),
        (["--model", "alexnet", "--devices", "0"], "--devices '0'; expected a whole number from 1 up"),
        (["--model", "alexnet", "--devices", "1.5"], "--devices '1.5'; expected a whole number"),
        ([*ALEXNET[1:], "--pin", "fc1:b=8,fc1:b=4"], "--pin 'fc1:b=8,fc1:b=4' has fc1:b twice"),
        ([*ALEXNET[1:], "--formats", "none"], "--formats 'none' has no formats; give some"),
        ([*ALEXNET[1:], "--machine", "pdp11"], "there is no machine 'pdp11'"),
        ([*ALEXNET[1:], "--memory", "1M"], "--memory of 1000000 bytes is 214441600 bytes too little"),
        ([*ALEXNET[1:], "--pin", "fc1"], "--pin 'fc1'"),
        ([*ALEXNET[1:], "--pin", "fc1:b=" + 5000 * "9"], "is no split; give LAYER:DIMENSION=NUMBER"),
        ([*ALEXNET[1:], "--pin", "fc9:b=2"], "--pin names 'fc9', which fits no layer"),
        ([*ALEXNET[1:], "--forbid", "h"], "--forbid 'h': 'h'; give LAYER:DIMENSION"),
        ([*ALEXNET[1:], "--recipe", "mxfp5"], "there is no recipe 'mxfp5'; the nearest are mxfp"),
        ([*ALEXNET[1:], "--formats", "fp32,nosuch"], "there is no recipe 'nosuch'; `fewbits recipes` lists"),
        ([*ALEXNET[1:], "--recipe", "nosuch"], "lists them all, and `fewbits formats` the formats"),
        ([*ALEXNET[1:], "--recipe", "float(e=9,m=1)"], "float: e=9 is not an integer from 1 to 8"),
        ([*ALEXNET[1:], "--reuse", "no.json"], "no.json"),
        (["--measure", "m.json", "--devices", "8"], "--devices does nothing for --measure"),
    ],
)
def test_bad_input_is_told_in_one_line(
    given: list[str],
    told: str,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    monkeypatch.chdir(tmp_path)
    assert run(["plan", *given]) == 2
    said = capsys.readouterr().err
    assert told in said
    assert len(said.splitlines()) == 1


@pytest.mark.parametrize("text", ["[]", "{", '{"fc1": 3}', '{"fc1": {"fp32": "x"}}'])
def test_a_file_without_numbers_is_refused(
    text: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "s.json"
    path.write_text(text)
    assert run([*ALEXNET, "--sensitivity", str(path)]) == 2
    assert "has no numbers by layer and format" in capsys.readouterr().err
