"""A model of one's own, MODULE:FUNCTION, on compare, train and prune."""

import itertools
import json
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

import fewbits as fb
from fewbits.cli import main as cli
from fewbits.sparsity import is_sparse

MODULE = """
import torch
from torch import nn

def loss(model, batch):
    x, y = batch
    return nn.functional.mse_loss(model(x), y)

def load():
    x = torch.randn(20, 16, 64, generator=torch.Generator().manual_seed(0))
    batches = [(a, a.sum(-1, keepdim=True)) for a in x]
    return nn.Sequential(nn.Linear(64, 8), nn.ReLU(), nn.Linear(8, 1)), batches, loss

def task():
    from fewbits.train import Hyperparameters, Task

    return Task(
        name="rows", metric="share", lower_is_better=False, create=lambda seed: nn.Linear(64, 1), loss=loss,
        draw_batch=lambda generator, n: (torch.ones(n, 64), torch.ones(n, 1)),
        evaluate=lambda model: float(model.weight.abs().sum()), hyper=Hyperparameters(2, 4, 0.01),
    )
"""
_NUMBERS = itertools.count()


@pytest.fixture
def own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """Its name; each has one of its own, as Python keeps what it imported."""
    name = f"command_models_{next(_NUMBERS)}"
    (tmp_path / f"{name}.py").write_text(MODULE)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    return f"{name}:load"


def test_compare_rounds_it_with_the_weights_that_it_has(own: Any, capsys: pytest.CaptureFixture[str]) -> None:
    asked = ["compare", "--model", own, "--formats", "fp32,mx4", "--include", "0", "--json", "r.json"]
    assert cli.run([*asked, "--report", "r.html"]) == 0, capsys.readouterr().err
    wide, narrow = json.loads(Path("r.json").read_text())["scores"]
    assert (wide["task"], wide["metric"]) == (own, "loss")
    assert wide["values"] == wide["baseline"] == narrow["baseline"] != narrow["values"]
    assert [layer["layer"] for layer in narrow["layers"]] == ["0"]
    assert f"fewbits compare --include 0 --model {own} --formats mx4" in Path("r.html").read_text()


def test_compare_takes_a_task_with_a_metric_of_its_own(own: Any, capsys: pytest.CaptureFixture[str]) -> None:
    task = own.replace(":load", ":task")
    asked = ["compare", "--model", task, "--formats", "mx4", "--json", "r.json", "--report", "r.html"]
    assert cli.run(asked) == 0, capsys.readouterr().err
    (score,) = json.loads(Path("r.json").read_text())["scores"]
    assert (score["metric"], score["lower_is_better"]) == ("share", False)
    assert f"fewbits compare --model {task} --formats mx4" in Path("r.html").read_text()
    assert "--seeds" not in capsys.readouterr().out  # which is refused beside --model


def test_codecs_of_a_task_are_measured_again_by_the_name_of_its_function(
    own: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    from fewbits.compare import codecs

    task = own.replace(":load", ":task")

    def trained(common: Any, texts: Any, seeds: int, progress: Any) -> Any:
        run = SimpleNamespace(bytes_sent=1.0, bytes_wide=1.0, value=1.0, final_loss=1.0)
        return SimpleNamespace(runs=dict.fromkeys(texts, (run,)), errors=dict.fromkeys(texts, 0.0))

    monkeypatch.setattr(codecs, "train_together", trained)
    asked = ["compare", "--model", task, "--codecs", "bf16", "--seeds", "1", "--processes", "2"]
    assert cli.run([*asked, "--json", "r.json", "--report", "r.html"]) == 0
    assert json.loads(Path("r.json").read_text())["comparisons"][0]["task"] == task
    assert f"--model {task} --codecs bf16" in Path("r.html").read_text()


def test_train_trains_it(own: Any, capsys: pytest.CaptureFixture[str]) -> None:
    asked = ["train", "--model", own, "--recipe", "fp32,mxfp6", "--steps", "5", "--out", "runs"]
    assert cli.run([*asked, "--json", "r.json"]) == 0, capsys.readouterr().err
    runs = json.loads(Path("r.json").read_text())["runs"]
    assert [(run["task"], run["recipe"], run["steps"]) for run in runs] == [
        (own, "fp32", 5),
        (own, "mxfp6", 5),
    ]


def test_prune_prunes_it(own: Any, capsys: pytest.CaptureFixture[str]) -> None:
    asked = ["prune", "--model", own, "--steps", "5", "--out", "p.safetensors", "--include", "0"]
    assert cli.run([*asked, "--json", "r.json"]) == 0, capsys.readouterr().err
    (model,) = json.loads(Path("r.json").read_text())["models"]
    assert [stage["stage"] for stage in model["stages"]] == ["dense", "pruned", "retrained"]
    weights = load_file("p.safetensors")
    assert is_sparse(weights["0.weight"], "2:4")
    assert not is_sparse(weights["2.weight"], "2:4")


@pytest.mark.parametrize("processes", [2, 3])
def test_codecs_are_compared_on_it_with_a_batch_for_each_process(
    own: Any, processes: int, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    started = []

    def starts(common: Any, *_: Any) -> Any:
        started.append(common)
        raise fb.ArgumentError("trained enough")

    monkeypatch.setattr("fewbits.compare.codecs.train_together", starts)
    asked = ["compare", "--codecs", "mxfp4", "--model", own, "--steps", "3", "--processes", str(processes)]
    assert cli.run(asked) == 2
    assert "trained enough" in capsys.readouterr().err
    assert [(s.task, s.processes, s.batch_size) for s in started] == [(own, processes, processes)]


@pytest.mark.parametrize(
    "words",
    [
        ["profile", "--task"],
        ["train", "--recipe", "fp32", "--out", "runs", "--task"],
        ["prune", "--task"],
        ["compare", "--codecs", "fp32", "--model"],
    ],
    ids=lambda words: words[0],
)
def test_it_has_one_size(own: Any, words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    before = sorted(Path().iterdir())
    assert cli.run([*words, own, "--size", "base"]) == 2
    assert f"--size 'base' does nothing for {own}" in " ".join(capsys.readouterr().err.split())
    assert sorted(Path().iterdir()) == before


def test_prune_starts_from_what_train_starts_from_and_refuses_what_it_refuses(
    own: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    draw = torch.Generator().manual_seed(1)
    shapes = {"0.weight": (8, 64), "0.bias": (8,), "2.weight": (1, 8), "2.bias": (1,)}
    held = {name: torch.randn(shape, generator=draw) for name, shape in shapes.items()}
    rounded = held | {n: fb.fake_quantize(held[n], "mxfp4") for n in ("0.weight", "2.weight")}

    def stages(source: str, *options: str) -> Any:
        asked = ["prune", source, "--model", own, "--recipe", "none", "--json", "p.json", *options]
        assert cli.run(asked) == 0, capsys.readouterr().err
        (told,) = json.loads(Path("p.json").read_text())["models"]
        assert told["steps"] == (3 if "--control" in options else 0)  # of trainings that there were
        return told["stages"]

    save_file(held, "wide.safetensors")
    assert cli.run(["cast", "wide.safetensors", "narrow.safetensors", "--format", "mxfp4"]) == 0
    save_file(rounded, "rounded.safetensors")
    assert stages("narrow.safetensors") == stages("rounded.safetensors") != stages("wide.safetensors")
    assert [stage["stage"] for stage in stages("wide.safetensors", "--control", "--steps", "3")][2:] == [
        "dense again"
    ]
    assert cli.run(["train", "--model", own, "--recipe", "fp32", "--steps", "2", "--out", "r"]) == 0
    (run,) = Path("r").iterdir()
    trained = load_file(run / "checkpoint.safetensors")
    save_file({n.removeprefix("model/"): x for n, x in trained.items() if "model/" in n}, "end.safetensors")
    assert stages(str(run)) == stages("end.safetensors")
    save_file(held | {"0.weight": held["0.weight"].to(torch.int8)}, "integers.safetensors")
    save_file(held | {"0.bias": torch.full((8,), float("nan"))}, "nan.safetensors")
    for words, said in (
        (["integers.safetensors"], "what was cast to integers elsewhere is no weight"),
        (["nan.safetensors"], "has NaN or infinity in '0.bias'"),
        (["wide.safetensors", "--seeds", "3"], "--seeds '3' beside weights to start from"),
    ):
        capsys.readouterr()
        assert cli.run(["prune", "--model", own, "--recipe", "none", *words]) == 2
        assert said in capsys.readouterr().err
