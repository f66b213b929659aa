"""``fewbits train``."""

import json
from pathlib import Path

import pytest

from fewbits.cli.main import run


def test_it_trains_compares_and_resumes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    given = [
        "train",
        "--recipe",
        "fp32,mxfp6",
        "--task",
        "digits",
        "--steps",
        "12",
        "--seeds",
        "2",
    ]
    given += ["--out", str(tmp_path / "runs"), "--json", str(tmp_path / "runs.json")]
    given += ["--report", str(tmp_path / "runs.html")]
    assert run(given) == 0
    shown = capsys.readouterr().out
    assert "digits, 12 steps, 2 seeds" in shown
    assert "mxfp6" in shown
    document = json.loads((tmp_path / "runs.json").read_text())
    assert document["kind"] == "training"
    assert [(r["recipe"], r["seed"]) for r in document["runs"]] == [
        ("fp32", 0), ("fp32", 1), ("mxfp6", 0), ("mxfp6", 1)
    ]  # fmt: skip
    values = [r["value"] for r in document["runs"]]
    losses = document["runs"][0]["losses"]
    assert (len(losses), document["runs"][0]["loss_every"]) == (12, 1)
    assert document["runs"][0]["final_loss"] == pytest.approx(sum(losses) / 12)
    assert 'id="losses"' in (tmp_path / "runs.html").read_text()
    wide, narrow = document["recipes"]
    assert (wide["recipe"], wide["mean"], wide["times_fp32"]) == ("fp32", sum(values[:2]) / 2, 1)
    assert (narrow["recipe"], narrow["evidence"]["pairs"]) == ("mxfp6", 2)
    assert narrow["evidence"]["mean"] == pytest.approx((values[2] - values[0] + values[3] - values[1]) / 2)
    assert narrow["evidence"]["low"] < narrow["evidence"]["mean"] < narrow["evidence"]["high"]
    assert run(given) == 2
    assert "--resume" in capsys.readouterr().err
    assert run([*given, "--resume"]) == 0
    again = json.loads((tmp_path / "runs.json").read_text())["runs"]
    for one, other in zip(document["runs"], again, strict=True):
        assert {**one, "seconds_per_step": 0} == {**other, "seconds_per_step": 0}


def test_it_lists_every_recipe(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    from fewbits.recipes import RECIPES

    assert run(["recipes"]) == 0
    shown = capsys.readouterr().out
    assert all(name in shown for name in RECIPES)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (["--recipe", "mxfp5"], "the nearest are"),
        (["--task", "nothing"], "expected bytes, lstm, digits, faint, mnist10k, a text or MODULE:FUNCTION"),
        (["--size", "huge"], "--size 'huge' is unknown; expected small or base"),
        (["--model", "gone:load"], "there is no module 'gone'"),
        (["--model", "gru"], "--model 'gru' is unknown; expected lstm or MODULE:FUNCTION"),
        (["--model", "lstm", "--task", "digits"], "model 'lstm' reads text, and task 'digits' has none"),
        (["--recipe", "none"], "there is nothing to train"),
        (["--task", "digits", "--include", "nothing"], "fits no module"),
        (["--task", "digits", "--recipe", "fp32,amp-bf16", "--exclude", "head"], "around the whole model"),
        (["--task", "digits", "--recipe", "fp32,amp-fp16", "--include", "conv1"], "around the whole model"),
        (["--task", "digits", "--exclude", "nothing"], "fits no module"),
        (["--task", "digits", "--from", __file__], "test_train_command.py"),
    ],
)
def test_bad_input_is_one_line_and_leaves_no_folder(
    given: list[str], said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["train", *given, "--out", str(tmp_path / "runs")]) == 2
    error = capsys.readouterr().err.strip().splitlines()[-1]
    assert error.startswith("fewbits: ")
    assert said in error
    assert list(tmp_path.iterdir()) == []


def test_a_folder_of_another_run_is_refused_before_the_first_run(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "runs"
    there = out / "digits-mxfp6-seed1"
    there.mkdir(parents=True)
    (there / "checkpoint.safetensors").touch()
    texts = [tmp_path / one / "texts" for one in ("a", "b")]
    for folder in texts:
        folder.mkdir(parents=True)
    twice = "mxfp6:vector=fp32,mxfp6: vector=fp32"
    for given, said in (
        (["--recipe", "fp32,mxfp6", "--task", "digits", "--seeds", "2"], "mxfp6-seed1 holds a run; go on"),
        (["--recipe", f"fp32,{twice}", "--task", "digits"], "would both lie in"),
        (["--recipe", "fp32", "--task", ",".join(map(str, texts))], "texts-fp32-seed0; train them by two"),
    ):
        assert run(["train", *given, "--steps", "1", "--out", str(out)]) == 2
        assert said in " ".join(capsys.readouterr().err.split())
        assert list(out.iterdir()) == [there]


def test_mnist_without_its_files_says_what_to_do(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FEWBITS_DATA", str(tmp_path))
    assert run(["train", "--task", "mnist10k", "--out", str(tmp_path / "runs")]) == 2
    assert "set FEWBITS_DATA" in " ".join(capsys.readouterr().err.split())


def test_mnist_trains(shared_data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FEWBITS_DATA", str(shared_data))
    given = [
        "train",
        "--task",
        "mnist10k",
        "--recipe",
        "mx9",
        "--steps",
        "20",
        "--out",
        str(tmp_path / "runs"),
    ]
    assert run(given) == 0
    assert (tmp_path / "runs" / "mnist10k-mx9-seed0" / "log.jsonl").exists()


def test_rate_batch_and_layers_are_options(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    given = ["train", "--task", "digits", "--recipe", "mxfp4", "--steps", "3"]
    options: list[list[str]] = [
        [],
        ["--lr", "1e-3"],
        ["--batch-size", "4"],
        ["--exclude", "conv1,conv2,conv3"],
        ["--include", "head"],
    ]
    losses = []
    for i, option in enumerate(options):
        out = ["--out", str(tmp_path / str(i)), "--json", str(tmp_path / f"{i}.json")]
        assert run([*given, *option, *out]) == 0
        losses.append(tuple(json.loads((tmp_path / f"{i}.json").read_text())["runs"][0]["losses"]))
    assert losses[3] == losses[4]
    assert len(set(losses)) == 4
    assert run([*given, "--exclude", "nothing", "--out", str(tmp_path / "none")]) == 2
    assert "fits no module" in capsys.readouterr().err
