"""`fewbits compare` on its three kinds of input: what is printed, and what is written."""

import json
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file

from fewbits.cli import main as cli
from fewbits.compare import models
from fewbits.train import Hyperparameters
from fewbits.train.tasks import digits_task
from fewbits.train.tasks.digits_task import DigitsConfig


@pytest.fixture
def _own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FEWBITS_CACHE", str(tmp_path / "cache"))


@pytest.mark.usefixtures("_own_cache")
def test_digits_prints_a_table_and_writes_json_and_a_page(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    page, data = tmp_path / "r.html", tmp_path / "r.json"
    asked = [
        "compare",
        "--task",
        "digits",
        "--seeds",
        "1",
        "--formats",
        'mxfp4,"float(e=3,m=2)"'.replace('"', ""),
    ]
    assert cli.run([*asked, "--report", str(page), "--json", str(data)]) == 0
    out = " ".join(capsys.readouterr().out.split())
    assert "mxfp4" in out
    assert "One seed ran, and no difference here is evidence. Use --seeds 5." in out
    scores = json.loads(data.read_text())["scores"]
    assert [s["format"] for s in scores] == ["mxfp4", "fp6_e3m2"]
    assert all(0 <= s["values"][0] <= 100 for s in scores)
    assert all(s["resolution"] == 100 / 897 and s["evidence"]["pairs"] == 1 for s in scores)
    assert not any(s["evidence"]["differs"] for s in scores)
    assert "--formats mxfp4" in page.read_text()


@pytest.mark.usefixtures("_own_cache")
def test_a_second_run_trains_nothing_and_says_the_same(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    asked = ["compare", "--task", "digits", "--seeds", "1", "--formats", "mxfp4", "--scale-rule", "rceil"]
    assert cli.run(asked) == 0
    first = capsys.readouterr().out
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("fewbits.train.baseline.Trainer", lambda *_, **__: pytest.fail("trained again"))
        assert cli.run(asked) == 0
    assert capsys.readouterr().out == first


@pytest.mark.usefixtures("_own_cache")
def test_training_in_each_format_fills_a_column_of_its_own(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    short = DigitsConfig(channels=4, hyper=Hyperparameters(steps=20, batch_size=16, lr=1e-2))
    monkeypatch.setattr(models, "read_task", lambda name, size: digits_task(short))
    page, data = tmp_path / "r.html", tmp_path / "r.json"
    asked = ["compare", "--task", "digits", "--seeds", "1", "--formats", "fp32,mxfp4", "--train"]
    assert cli.run([*asked, "--report", str(page), "--json", str(data)]) == 0
    out = capsys.readouterr().out
    assert "trained" in out
    assert "in it" in out
    fp32, mxfp4 = json.loads(data.read_text())["scores"]
    assert fp32["trained_difference"] == 0
    assert mxfp4["trained_difference"] == mxfp4["trained"][0] - fp32["trained"][0]
    assert "trained in it, minus FP32" in page.read_text()
    assert "--formats mxfp4 --seeds 1 --train" in page.read_text()


def test_training_is_for_the_built_in_models(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert cli.run(["compare", str(tmp_path), "--train"]) == 2
    assert "--train does nothing for a checkpoint; leave it out" in capsys.readouterr().err


def test_a_checkpoint_gets_a_proposal_per_tensor_and_a_total(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    rng = np.random.default_rng(0)
    path, data, page = tmp_path / "m.safetensors", tmp_path / "m.json", tmp_path / "m.html"
    save_file({"w": rng.standard_normal((64, 64)).astype(np.float32), "steps": np.array([3])}, path)
    asked = ["compare", str(path), "--min-qsnr", "30", "--formats", "mxfp4,mxfp6_e2m3,mxint8"]
    assert cli.run([*asked, "--json", str(data), "--report", str(page)]) == 0
    assert "would weigh" in " ".join(capsys.readouterr().out.split())
    tensors = {t["tensor"]: t for t in json.loads(data.read_text())["checkpoint"]["tensors"]}
    assert tensors["w"]["proposed"] == "mxfp6_e2m3"
    assert tensors["steps"]["proposed"] is None
    assert page.stat().st_size > 10_000


def test_a_matrix_gets_its_condition_before_and_after(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    path, data, page = tmp_path / "a.mtx", tmp_path / "a.json", tmp_path / "a.html"
    path.write_text("%%MatrixMarket matrix coordinate real general\n2 2 3\n1 1 4.0\n2 1 1.5\n2 2 3.0\n")
    assert (
        cli.run(["compare", str(path), "--formats", "fp32,bf16", "--json", str(data), "--report", str(page)])
        == 0
    )
    assert "a.mtx" in capsys.readouterr().out
    scores = json.loads(data.read_text())["scores"]
    assert [s["frobenius_error"] for s in scores] == [0.0, 0.0]
    assert page.stat().st_size > 10_000
