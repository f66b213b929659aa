"""`fewbits prune`: checkpoints and built-in models, tables, JSON, a page, exit codes."""

import json
from pathlib import Path
from typing import Any, NoReturn

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file

from fewbits.cli import main as cli
from fewbits.compare import prune_checkpoint
from fewbits.sparsity import is_sparse

GENERATOR = torch.Generator().manual_seed(0)
W = torch.randn(8, 64, generator=GENERATOR).bfloat16()
KERNEL = torch.randn(6, 8, 3, 3, generator=GENERATOR)


@pytest.fixture
def model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    tensors = {"w": W, "kernel": KERNEL, "embed": W[:4].clone(), "odd": KERNEL[:, :3], "norm": torch.ones(8)}
    save_file({name: t.contiguous() for name, t in tensors.items()}, "model.safetensors")
    return tmp_path


def one_line(capsys: pytest.CaptureFixture[str]) -> str:
    (line,) = [line for line in capsys.readouterr().err.splitlines() if line.startswith("fewbits: ")]
    return line


def unfolded(text: str) -> str:
    return " ".join(text.split())


def test_a_checkpoint_is_pruned_and_told_about(model: Any, capsys: pytest.CaptureFixture[str]) -> None:
    given = [
        "prune",
        "model.safetensors",
        "--exclude",
        "embed*",
        "--out",
        "p.safetensors",
        "--json",
        "p.json",
    ]
    assert cli.run([*given, "--report", "p.html"]) == 0
    out, err = capsys.readouterr()
    assert "pruned to 2:4" in unfolded(out)
    assert "left alone: odd, axis 1 of (6, 3, 3, 3) is no multiple of 4" in out
    assert "2 tensors, 944 values, 50.0 % of them kept; 1.84 KiB dense, 1.04 KiB compressed" in out
    assert all(f"wrote p.{kind}" in err for kind in ("safetensors", "json", "html"))
    found = load_file("p.safetensors")
    assert is_sparse(found["w"], "2:4")
    assert is_sparse(found["kernel"], "2:4", axis=1)
    assert torch.equal(found["w"][found["w"] != 0], W[found["w"] != 0])
    assert torch.equal(found["embed"], W[:4])
    assert found["w"].dtype == torch.bfloat16
    document = json.loads(Path("p.json").read_text())
    assert document["kind"] == "pruning"
    (told,) = document["models"]
    assert [(t["tensor"], t["axis"], t["density"]) for t in told["report"]["pruned"]] == [
        ("kernel", 1, 0.5), ("w", 1, 0.5)
    ]  # fmt: skip
    assert [(p["tensor"], p["format"], p["dense_bytes"]) for p in told["products"]] == [
        ("kernel", "bf16", 864), ("w", "bf16", 1024)
    ]  # fmt: skip
    assert "kernel" in Path("p.html").read_text()


def test_large_kernels_are_kernels_and_the_axis_of_each_tensor_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "120")
    shapes = {
        "patch": (8, 3, 32, 32),
        "wide": (8, 4, 40, 40),
        "taps": (4, 8, 3),
        "many": (4, 8, 64),
        "w": (4, 8),
    }
    axes = {"wide": 1, "taps": 1, "many": 2, "w": 1}
    save_file(
        {name: torch.randn(shape, generator=GENERATOR) for name, shape in shapes.items()}, "m.safetensors"
    )
    assert cli.run(["prune", "m.safetensors", "--out", "p.safetensors"]) == 0
    out = capsys.readouterr().out
    assert "left alone: patch, axis 1 of (8, 3, 32, 32) is no multiple of 4" in out
    found = load_file("p.safetensors")
    for name, axis in axes.items():
        groups = found[name].movedim(axis, -1).unflatten(-1, (-1, 4))
        assert bool(((groups != 0).sum(-1) == 2).all())
        (row,) = [line.split() for line in out.splitlines() if line.split()[:1] == [name]]
        assert row[2] == str(axis)
    assert bool((found["patch"] != 0).all())


def test_what_is_pruned_is_stored_compressed_without_a_loss(
    model: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.run(["prune", "model.safetensors", "--out", "p.safetensors"]) == 0
    given = [
        "p.safetensors",
        "c.safetensors",
        "--format",
        "bf16",
        "--pattern",
        "2:4",
        "--exclude",
        "kernel,odd",
    ]
    assert cli.run(["cast", *given, "--json", "c.json"]) == 0
    told = json.loads(Path("c.json").read_text())["cast"]["tensors"]
    assert {t["tensor"]: t["bytes_after"] / t["bytes_before"] for t in told}["w"] == 9 / 16
    assert cli.run(["cast", "--back", "c.safetensors", "b.safetensors"]) == 0
    assert torch.equal(load_file("b.safetensors")["w"], load_file("p.safetensors")["w"])


def test_metadata_stays(model: Any, capsys: pytest.CaptureFixture[str]) -> None:
    notes = {"format": "pt", "note": "mine"}
    save_file({"w": W}, "noted.safetensors", notes)
    assert cli.run(["prune", "noted.safetensors", "--out", "p.safetensors"]) == 0
    with safe_open("p.safetensors", "pt") as file:
        assert file.metadata() == notes


def test_metadata_of_every_file_of_a_folder_stays(model: Any, capsys: pytest.CaptureFixture[str]) -> None:
    Path("parts").mkdir()
    save_file({"a": W}, "parts/1.safetensors", {"format": "pt", "first": "1", "both": "1"})
    save_file({"b": W}, "parts/2.safetensors", {"format": "pt", "second": "2", "both": "2"})
    assert cli.run(["prune", "parts", "--out", "p.safetensors"]) == 0
    with safe_open("p.safetensors", "pt") as file:
        assert file.metadata() == {"format": "pt", "first": "1", "second": "2", "both": "1"}


def test_without_out_it_only_tells(model: Any, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.run(["prune", "model.safetensors", "--pattern", "4:8", "--format", "mxfp4"]) == 0
    out = unfolded(capsys.readouterr().out)
    assert "pruned to 4:8" in out
    assert "mxfp4" in out
    assert [p.name for p in model.iterdir()] == ["model.safetensors"]


def test_a_task_is_trained_pruned_and_trained_again(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    files = {name: str(tmp_path / name) for name in ("d.safetensors", "p.safetensors", "p.json", "p.html")}
    task = ["prune", "--task", "digits", "--steps", "60", "--exclude", "conv2"]
    given = [*task, "--recipe", "fp32,mxint8", "--control", "--seeds", "1"]
    given += ["--out", files["p.safetensors"], "--json", files["p.json"], "--report", files["p.html"]]
    assert cli.run(given) == 0
    assert "digits 60 steps, 1 seed, mask frozen; accuracy: higher is better" in unfolded(
        capsys.readouterr().out
    )
    (told,) = json.loads(Path(files["p.json"]).read_text())["models"]
    stages = {(s["stage"], s["recipe"]): s["values"][0] for s in told["stages"]}
    assert list(stages) == [
        ("dense", "fp32"), ("pruned", "fp32"), ("dense again", "fp32"), ("retrained", "fp32"),
        ("retrained", "mxint8"),
    ]  # fmt: skip
    dense = stages["dense", "fp32"]
    assert stages["pruned", "fp32"] < dense - 1  # the control: without retraining quality is lost
    assert min(stages["retrained", "fp32"], stages["retrained", "mxint8"]) > dense - 0.5
    found = load_file(files["p.safetensors"])
    assert set(found) == {f"{m}.{p}" for m in ("conv1", "conv2", "conv3", "head") for p in ("weight", "bias")}
    assert is_sparse(found["conv3.weight"], "2:4", axis=1)
    assert not is_sparse(found["conv2.weight"], "2:4", axis=1)
    assert "dense again" in Path(files["p.html"]).read_text()
    # What was written is a model of the task: one can start from it.
    again = [*task, "--recipe", "none", files["p.safetensors"], "--json", files["p.json"]]
    assert cli.run(again) == 0
    (told,) = json.loads(Path(files["p.json"]).read_text())["models"]
    assert [s["stage"] for s in told["stages"]] == ["dense", "pruned"]
    assert told["stages"][0]["values"] == told["stages"][1]["values"]
    assert [t["kept_magnitude"] for t in told["report"]["pruned"]] == [1.0, 1.0]


def test_the_control_needs_no_recipe(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out, table = tmp_path / "p.safetensors", tmp_path / "p.json"
    given = ["prune", "--task", "digits", "--steps", "4", "--recipe", "none", "--control"]
    given += ["--format", "mxint8"]
    assert cli.run([*given, "--out", str(out), "--json", str(table)]) == 0
    assert "dense again" in capsys.readouterr().out
    (told,) = json.loads(table.read_text())["models"]
    assert [s["stage"] for s in told["stages"]] == ["dense", "pruned", "dense again"]
    # A byte for each value, or half of them with two bits for each place, and one for each block of 32.
    values = {"conv2.weight": 32 * 288, "conv3.weight": 64 * 288, "head.weight": 10 * 256}
    assert {p["tensor"]: (p["format"], p["dense_bytes"], p["sparse_bytes"]) for p in told["products"]} == {
        name: ("mxint8", n + n // 32, n // 2 + n // 8 + n // 32) for name, n in values.items()
    }
    assert all(is_sparse(load_file(out)[f"conv{i}.weight"], "2:4", axis=1) for i in (2, 3))


@pytest.mark.parametrize("schedule", ["recomputed", "gradual", "sr_ste"])
def test_every_schedule_ends_sparse_and_says_how_masks_changed(schedule: Any, tmp_path: Path) -> None:
    given = ["prune", "--task", "digits", "--steps", "20", "--schedule", schedule]
    given += ["--out", str(tmp_path / "p.safetensors"), "--json", str(tmp_path / "p.json")]
    assert cli.run(given) == 0
    found = load_file(tmp_path / "p.safetensors")
    assert all(is_sparse(found[f"conv{i}.weight"], "2:4", axis=1) for i in (2, 3))
    (told,) = json.loads((tmp_path / "p.json").read_text())["models"]
    assert told["stages"][-1]["stage"] == ("from scratch" if schedule == "sr_ste" else "retrained")
    assert told["stages"][-1]["flip_rate"] > 0
    assert told["stages"][0]["flip_rate"] == 0


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ([], "nothing to prune; give a checkpoint, or a --task"),
        (["model.safetensors", "--steps", "3"], "does nothing for a checkpoint, which --task would train"),
        (["model.safetensors", "--pattern", "5:4"], "a pattern keeps N of M"),
        (["model.safetensors", "--pattern", "1:63"], "no tensor would be pruned to 1:63"),
        (["model.safetensors", "--format", "mxfp5"], "the nearest are mxfp4"),
        (["model.safetensors", "--exclude", "q*"], "--exclude 'q*' matches no tensor"),
        (["model.safetensors", "--out", "model.safetensors"], "which is read"),
        (["gone.safetensors"], "does not exist"),
        (
            ["--task", "digits", "--schedule", "often"],
            "--schedule 'often' is unknown; expected one of frozen",
        ),
        (
            ["--task", "digits", "--exclude", "q*"],
            "--exclude 'q*' fits no module; the first of them are conv1",
        ),
        (
            ["--task", "digits", "--recipe", "none", "--schedule", "gradual"],
            "--schedule 'gradual' says when masks are made in retraining",
        ),
        (
            ["--task", "digits", "--recipe", "none", "--schedule", "sr_ste", "--control"],
            "--schedule 'sr_ste' says when masks are made in retraining",
        ),
        (["--task", "digits", "--pattern", "3:63"], "DigitModel has no layer to prune to 3:63"),
        (["--task", "digits", "model.safetensors"], "give a checkpoint of the same task, model and size"),
        (["--task", "digits", "--recipe", "mxfp5"], "the nearest are"),
        (["--task", "digits", "--recipe", "none,fp32"], "'none,fp32' has none among recipes"),
        (["--task", "nothing"], "expected bytes, lstm, digits, faint, mnist10k, a text or MODULE:FUNCTION"),
    ],
)
def test_bad_input_is_one_line_and_writes_nothing(
    model: Any, capsys: pytest.CaptureFixture[str], arguments: Any, said: str
) -> None:
    assert cli.run(["prune", *arguments]) == 2
    assert said in one_line(capsys)
    assert [p.name for p in model.iterdir()] == ["model.safetensors"]


def test_narrow_checkpoints_are_restored_first(model: Any, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.run(["cast", "model.safetensors", "n.safetensors", "--format", "mxfp4"]) == 0
    capsys.readouterr()
    assert cli.run(["prune", "n.safetensors"]) == 2
    assert "is narrow; restore the checkpoint first" in one_line(capsys)


def test_float8_tensors_are_left_alone(model: Any, capsys: pytest.CaptureFixture[str]) -> None:
    save_file({"w": W, "f": W.to(torch.float8_e4m3fn)}, "f.safetensors")
    assert cli.run(["prune", "f.safetensors"]) == 0
    assert "left alone: f, it is float8_e4m3fn: convert it to bfloat16 first" in capsys.readouterr().out


@pytest.mark.parametrize("shape", [(4, 0), (0, 8), (4, 0, 3, 3)])
def test_tensors_without_values_are_left_alone(
    model: Any, shape: tuple[int, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    save_file({"w": W, "empty": torch.zeros(shape)}, "e.safetensors")
    assert cli.run(["prune", "e.safetensors", "--out", "p.safetensors", "--format", "bf16"]) == 0
    assert "left alone: empty, it has no values" in capsys.readouterr().out
    assert load_file("p.safetensors")["empty"].shape == shape


def test_a_measurement_that_fails_leaves_nothing_written(model: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*_: object) -> NoReturn:
        raise MemoryError

    monkeypatch.setattr("fewbits.compare.pruned_checkpoint.sparse_products", fails)
    with pytest.raises(MemoryError):
        prune_checkpoint("model.safetensors", "p.safetensors", "2:4", format="bf16")
    assert not Path("p.safetensors").exists()


def test_an_interrupt_says_that_nothing_was_written(
    model: Any, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def stopped(*_: Any, **__: Any) -> NoReturn:
        raise KeyboardInterrupt

    monkeypatch.setattr("fewbits.compare.pruned_checkpoint.mask", stopped)
    assert cli.run(["prune", "model.safetensors", "--out", "p.safetensors"]) == 130
    assert "nothing was written" in one_line(capsys)
