"""`fewbits cast` and `fewbits inspect`: files on the disk, tables, JSON, exit codes."""

import json
from pathlib import Path
from typing import Any, NoReturn

import pytest
import torch
from safetensors.torch import load_file, save_file

import fewbits as fb
from fewbits.cli import main as cli

W = torch.randn(8, 64, generator=torch.Generator().manual_seed(0)).bfloat16()


@pytest.fixture
def model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.chdir(tmp_path)
    save_file({"w": W, "lm_head": W[:4].clone(), "norm": torch.ones(8)}, "model.safetensors")
    return tmp_path


def one_line(capsys: pytest.CaptureFixture[str]) -> str:
    (line,) = [line for line in capsys.readouterr().err.splitlines() if line.startswith("fewbits: ")]
    return line


def test_a_checkpoint_is_cast_inspected_and_restored(model: Any, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = [
        "cast",
        "model.safetensors",
        "n.safetensors",
        "--format",
        "mxfp4",
        "--exclude",
        "lm_head*,norm",
    ]
    assert cli.run([*arguments, "--json", "cast.json"]) == 0
    out, err = capsys.readouterr()
    assert "mxfp4" in out
    assert "kept as it is" in out
    assert "wrote n.safetensors" in err
    told = json.loads((model / "cast.json").read_text())["cast"]
    assert (told["bytes_before"], told["bytes_after"]) == (1024 + 512 + 32, 8 * 34 + 512 + 32)
    assert [f["worst_tensor"] for f in told["formats"]] == ["w", None]

    assert cli.run(["inspect", "n.safetensors", "--json", "i.json"]) == 0
    assert "mxfp4 for BF16" in capsys.readouterr().out
    told = json.loads((model / "i.json").read_text())["inspect"]
    assert (told["problems"], told["stored_bytes"]) == ([], 8 * 34 + 512 + 32)

    assert cli.run(["cast", "--back", "n.safetensors", "back.safetensors"]) == 0
    assert "restored to back.safetensors" in capsys.readouterr().out
    found = load_file("back.safetensors")
    assert torch.equal(found["w"], fb.fake_quantize(W, "mxfp4"))
    assert torch.equal(found["lm_head"], W[:4])


def test_a_pattern_prunes_and_names_what_stays_dense(model: Any, capsys: pytest.CaptureFixture[str]) -> None:
    save_file({"w": W, "odd": W[:, :62].contiguous(), "norm": torch.ones(8)}, "model.safetensors")
    arguments = ["cast", "model.safetensors", "n.safetensors", "--format", "mxfp4", "--pattern", "2:4"]
    assert cli.run([*arguments, "--json", "cast.json"]) == 0
    said = [line for line in capsys.readouterr().err.splitlines() if line.startswith("left dense")]
    assert said == ["left dense: odd, 8 x 62, does not fit 2:4"]
    told = json.loads((model / "cast.json").read_text())["cast"]["tensors"]
    kept = {t["tensor"]: (t["sparsity"], t["bytes_after"]) for t in told}
    assert kept == {"w": ("2:4", 8 * (8 + 16 + 2)), "odd": (None, 8 * 33), "norm": (None, 32)}
    assert cli.run(["inspect", "n.safetensors"]) == 0
    assert "mxfp4 2:4 for BF16" in capsys.readouterr().out
    assert cli.run(["cast", "n.safetensors", "b.safetensors", "--back", "--pattern", "2:4"]) == 2
    assert "does nothing for --back" in one_line(capsys)


def test_the_first_map_that_matches_decides_and_formats_may_hold_commas_and_signs(
    model: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    rules = ["--map", "lm*=block(element=float(e=2,m=1),scale=e8m0,size=16),*=mx9"]
    assert cli.run(["cast", "model.safetensors", "n.safetensors", *rules]) == 0
    assert cli.run(["inspect", "n.safetensors", "--json", "i.json"]) == 0
    about = {
        t["tensor"]: t["format"] for t in json.loads((model / "i.json").read_text())["inspect"]["tensors"]
    }
    assert about == {
        "w": "mx9",
        "lm_head": "block(element=fp4_e2m1,scale=e8m0,size=16)",
        "norm": None,
    }


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["model.safetensors", "n.safetensors"], "no format was given; add --format"),
        (["model.safetensors", "n.safetensors", "--format", "mxfp5"], "the nearest are mxfp4"),
        (
            ["model.safetensors", "n.safetensors", "--map", "mx9"],
            "--map 'mx9' is no file, and not PATTERN=FORMAT",
        ),
        (["model.safetensors", "n.safetensors", "--map", "q*=mx9"], "--map 'q*' matches no tensor"),
        (
            ["model.safetensors", "n.safetensors", "--format", "mx9", "--exclude", "q*"],
            "--exclude 'q*' matches no",
        ),
        (["model.safetensors", "n.safetensors", "--format", "mx9", "--scale-rule", "x"], "--scale-rule 'x'"),
        (["model.safetensors", "model.safetensors", "--format", "mx9"], "which is read"),
        (["gone.safetensors", "n.safetensors", "--format", "mx9"], "does not exist"),
        (["model.safetensors", "no/n.safetensors", "--format", "mx9"], "does not exist; create it first"),
        (["model.safetensors", "n.safetensors", "--back"], "there is nothing to restore"),
        (["model.safetensors", "n.safetensors", "--back", "--format", "mx9"], "does nothing for --back"),
    ],
)
def test_bad_input_is_one_line_and_writes_nothing(
    model: Any, capsys: pytest.CaptureFixture[str], arguments: Any, said: str
) -> None:
    assert cli.run(["cast", *arguments]) == 2
    assert said in one_line(capsys)
    assert [p.name for p in model.iterdir()] == ["model.safetensors"]


def test_an_interrupt_says_that_the_work_goes_on(
    model: Any, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def stopped(*_: Any, **__: Any) -> NoReturn:
        raise KeyboardInterrupt

    monkeypatch.setattr("fewbits.files.job.quantize_tensor", stopped)
    assert cli.run(["cast", "model.safetensors", "n.safetensors", "--format", "mx9"]) == 130
    assert "n.safetensors is as it was, and the same command goes on" in one_line(capsys)


def test_a_folder_that_may_not_be_written_exits_with_1(
    model: Any, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def denied(*_: Any, **__: Any) -> NoReturn:
        raise PermissionError(13, "Permission denied", "n.safetensors")

    monkeypatch.setattr("fewbits.files.resumable.os.open", denied)
    assert cli.run(["cast", "model.safetensors", "n.safetensors", "--format", "mx9"]) == 1
    assert "Permission denied: 'n.safetensors'" in one_line(capsys)


def test_a_problem_is_a_line_and_exit_code_1(model: Any, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.run(["cast", "model.safetensors", "n.safetensors", "--format", "mx9"]) == 0
    path = model / "n.safetensors"
    path.write_bytes(path.read_bytes().replace(b'"w.codes"', b'"x.codes"'))
    capsys.readouterr()
    assert cli.run(["inspect", "n.safetensors", "--json", "i.json"]) == 1
    assert "tensor 'w': its part 'codes' is missing" in one_line(capsys)
    assert len(json.loads((model / "i.json").read_text())["inspect"]["problems"]) == 1


def test_a_damaged_file_exits_with_2(model: Any, capsys: pytest.CaptureFixture[str]) -> None:
    (model / "model.safetensors").write_bytes(b"hello")
    assert cli.run(["inspect", "model.safetensors"]) == 2
    assert "cannot be read as safetensors" in one_line(capsys)


@pytest.mark.parametrize(
    "command",
    [
        ["compare", "n.safetensors", "--formats", "mxfp4"],
        ["cast", "n.safetensors", "m.safetensors", "--format", "mxfp4"],
    ],
)
def test_commands_that_round_say_that_a_file_was_cast_already_and_what_to_do(
    model: Any, capsys: pytest.CaptureFixture[str], command: Any
) -> None:
    assert cli.run(["cast", "model.safetensors", "n.safetensors", "--format", "mxfp4"]) == 0
    capsys.readouterr()
    assert cli.run(command) == 2
    told = one_line(capsys)
    assert "n.safetensors was cast already: it holds 'lm_head' in mxfp4" in told
    assert "fewbits cast SOURCE DESTINATION --back" in told


def test_a_layout_of_another_program_is_chosen_by_its_name(
    model: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("compressed_tensors")
    (model / "wide").mkdir()
    heads = {"lm_head.weight": W.clone(), "layers.0.q_proj.weight": W, "layers.0.k_proj.weight": W * 2}
    save_file(heads, model / "wide" / "model.safetensors")
    (model / "wide" / "config.json").write_text('{"dtype": "float32"}')
    arguments = ["cast", "wide", "n", "--format", "nvfp4", "--layout", "compressed-tensors"]
    for more, scales in ([], 1), (["--no-fuse"], 2):
        assert cli.run([*arguments, *more]) == 0
        found = load_file("n/model.safetensors")
        outer = {x.item() for name, x in found.items() if name.endswith("_global_scale")}
        assert len(outer) == scales
    capsys.readouterr()
    assert cli.run(["inspect", "n"]) == 0
    assert "nvfp4 for BF16" in capsys.readouterr().out
    assert cli.run(["cast", "n", "b", "--back"]) == 0
    assert sorted(load_file("b/model.safetensors")) == sorted(heads)
    assert "quantization_config" not in json.loads((model / "b" / "config.json").read_text())
    capsys.readouterr()
    assert cli.run([*arguments[:-1], "pickle"]) == 2
    assert "--layout 'pickle' is unknown; expected one of compressed-tensors" in one_line(capsys)
    assert cli.run([*arguments[:-2], "--no-fuse"]) == 2
    assert "--fuse does nothing for the layout of fewbits" in one_line(capsys)
    assert cli.run(["cast", "n", "b2", "--back", "--layout", "gguf"]) == 2
    assert "does nothing for --back" in one_line(capsys)
