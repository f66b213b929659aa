"""A model of one's own, MODULE:FUNCTION, on compare, train and prune."""

import itertools
import json
import sys
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load_file

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
