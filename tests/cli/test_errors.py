"""Bad input gives one line on the error stream, exit code 2, and writes nothing."""

import json
import os
import struct
import subprocess
import sys
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
import pytest
from safetensors.numpy import save_file

from fewbits.cli import main as cli


def failed(capsys: pytest.CaptureFixture[str], tmp_path: Path, *arguments: Any) -> Any:
    """Run with bad input inside an empty folder and return the one line that is printed."""
    before = sorted(p.name for p in tmp_path.iterdir())
    code = cli.run([*arguments, "--json", str(tmp_path / "out.json")])
    out, err = capsys.readouterr()
    assert code == 2, err
    lines = [line for line in err.splitlines() if line.startswith("fewbits: ")]
    assert len(lines) == 1
    assert "Traceback" not in err + out
    assert sorted(p.name for p in tmp_path.iterdir()) == before
    return lines[0]


@pytest.mark.parametrize(
    ("formats", "said"),
    [
        ("mxfp5", "there is no format named 'mxfp5'; the nearest are mxfp4"),
        ("float(e=4,m=)", "at character 13, marked >>>"),
        ("block(element=fp4_e2m1,scale=e8m0,size=-8)", "block: size=-8 is not an integer from 1"),
        ("float(e=99,m=2)", "float: e=99 is not an integer from 1 to 8"),
    ],
)
def test_a_wrong_format_is_told_with_what_was_expected(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, formats: Any, said: str
) -> None:
    assert said in failed(capsys, tmp_path, "compare", "--formats", formats)


def test_an_unknown_task_names_the_known_ones(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert "'imagenet', and no such file or folder; expected bytes, lstm" in failed(
        capsys, tmp_path, "compare", "--task", "imagenet"
    )


def test_a_text_too_short_says_how_many_bytes_are_needed(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    text = tmp_path / "short.txt"
    text.write_text("too short")
    assert "9 bytes" in failed(capsys, tmp_path, "compare", "--task", str(text))


def test_a_task_beside_a_checkpoint_is_refused(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert "--task does nothing for a checkpoint; leave it out" in failed(
        capsys, tmp_path, "compare", str(tmp_path), "--task", str(tmp_path)
    )


@pytest.mark.parametrize("words", [["--formats", "mx6", "--formats=mx9"], ["--train", "--train"]])
def test_an_option_that_is_given_twice_is_refused(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, words: list[str]
) -> None:
    said = failed(capsys, tmp_path, "compare", *words)
    assert f"{words[0]} is given 2 times; give it once, a list with commas between" in said


def test_a_missing_file_is_named(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert "gone.safetensors does not exist" in failed(
        capsys, tmp_path, "compare", str(tmp_path / "gone.safetensors")
    )


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"\x10",
        struct.pack("<Q", 2**60) + b"{}",
        struct.pack("<Q", 2) + b"[]",
        struct.pack("<Q", 64)
        + json.dumps({"a": {"dtype": "F32", "shape": [9], "data_offsets": [0, 36]}}).encode(),
    ],
    ids=["empty", "one-byte", "length-beyond-file", "not-a-header", "truncated"],
)
def test_a_damaged_checkpoint_is_one_line(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, content: Any
) -> None:
    path = tmp_path / "bad.safetensors"
    path.write_bytes(content)
    assert "bad.safetensors" in failed(capsys, tmp_path, "compare", str(path))


def test_a_checkpoint_without_a_number_in_it_is_measured_as_kept(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    path = tmp_path / "flags.safetensors"
    save_file({"flags": np.array([True, False])}, path)
    data = tmp_path / "flags.json"
    assert cli.run(["compare", str(path), "--json", str(data)]) == 0
    assert "keep" in capsys.readouterr().out
    (tensor,) = json.loads(data.read_text())["checkpoint"]["tensors"]
    assert tensor["reason"] == "BOOL is not floating point: kept"


def test_a_negative_number_of_seeds_is_refused(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert "--seeds" in failed(capsys, tmp_path, "compare", "--seeds", "-1")


def test_a_wrong_scale_rule_lists_the_rules(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert "double_floor" in failed(
        capsys, tmp_path, "compare", "--task", "digits", "--scale-rule", "round", "--formats", "mxfp4"
    )


def test_a_folder_that_does_not_exist_is_told_before_any_work(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    assert cli.run(["compare", "--report", str(tmp_path / "no" / "page.html")]) == 2
    assert "does not exist; create it first" in capsys.readouterr().err


def test_an_unknown_command_suggests_the_nearest(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.run(["compar"]) == 2
    assert "compare" in capsys.readouterr().err


def test_a_failed_job_exits_with_1_and_no_traceback(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def breaks(*_: Any) -> NoReturn:
        raise RuntimeError("out of luck")

    monkeypatch.setattr("fewbits.cli.compare._measured", breaks)
    assert cli.run(["compare"]) == 1
    assert capsys.readouterr().err.strip().endswith("fewbits: the job failed: RuntimeError: out of luck")


def test_a_full_disk_exits_with_1_and_leaves_nothing(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def full(*_: Any) -> NoReturn:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("fewbits.cli.paths.write_text", full)
    assert cli.run(["formats", "--json", str(tmp_path / "out.json")]) == 1
    assert "No space left" in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


def test_an_interrupt_exits_with_130(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*_: Any) -> NoReturn:
        raise KeyboardInterrupt

    monkeypatch.setattr("fewbits.cli.compare._measured", interrupted)
    assert cli.run(["compare"]) == 130
    assert "interrupted" in capsys.readouterr().err


def test_a_wrong_instruction_set_is_refused_before_anything_begins(tmp_path: Path) -> None:
    command = [sys.executable, "-c", "from fewbits.cli.main import main; main()"]
    wrong = os.environ | {"FEWBITS_ISA": "nosuch"}
    for job in (
        ["bench", "--task", "digits", "--recipe", "fp32"],
        ["train", "--task", "digits"],
        ["formats"],
    ):
        done = subprocess.run(
            [*command, *job],
            cwd=tmp_path,
            env=wrong,
            capture_output=True,
            text=True,
            timeout=300,
            check=False,
        )
        assert (done.returncode, done.stdout) == (2, "")
        assert done.stderr.startswith(
            "fewbits: the environment variable FEWBITS_ISA asks for nosuch, which is not"
        )
        assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("second", [["--alias", "ng=mxfp4"], ["--alias=ng=mxfp4"]])
def test_an_alias_option_that_is_given_twice_is_refused(
    capsys: pytest.CaptureFixture[str], second: list[str]
) -> None:
    first = ["--alias", "nf=lookup(-1,1)"]
    assert cli.run([*first, *second, "formats", "nf"]) == 2
    said = "--alias is given 2 times; give it once, a list with commas between"
    assert capsys.readouterr().err == f"fewbits: {said}\n"
    assert cli.run([*first, "formats", "nf"]) == 0
    assert cli.run(["--version"]) == 0


@pytest.mark.parametrize("text", ["", " ", ","])
def test_an_empty_alias_is_refused(capsys: pytest.CaptureFixture[str], text: str) -> None:
    assert cli.run(["--alias", text, "formats"]) == 2
    assert (
        capsys.readouterr().err
        == f"fewbits: --alias {text!r} is empty; give it NAME=FORMAT, or leave it out\n"
    )


def test_a_name_that_the_terminal_has_no_characters_for_is_shown_by_its_escape(tmp_path: Path) -> None:
    source, report = tmp_path / "m.safetensors", tmp_path / "r.json"
    save_file({"\u65e5": np.ones((2, 2), np.float32)}, source)
    done = subprocess.run(
        [sys.executable, "-m", "fewbits", "inspect", str(source), "--json", str(report)],
        capture_output=True,
        check=False,
        env=os.environ | {"PYTHONIOENCODING": "latin-1"},
    )
    assert done.returncode == 0, done.stderr
    assert rb"\u65e5" in done.stdout
    assert json.loads(report.read_text())["inspect"]["tensors"][0]["tensor"] == "\u65e5"


def test_an_escape_sequence_in_a_path_is_shown_and_not_obeyed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.run(["inspect", str(tmp_path / "red\x1b[31m.safetensors")]) == 2
    error = capsys.readouterr().err
    assert r"red\x1b[31m.safetensors does not exist" in error
    assert "\x1b" not in error
