"""The command that a page shows for a row measures that row again, wherever it is run."""

import html
import json
import re
import shlex
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import save_file

from fewbits.cli import main as cli
from tests.report import fake, scaling

FORMAT = "float(e=6,m=9)"  # its text has characters of the shell
SYSTEM = "%%MatrixMarket matrix array real general\n2 2\n4\n1\n1\n3\n"


def shown(page: Path) -> list[list[str]]:
    """The words of each command in the list of rows."""
    found = re.findall(r"<dd><code>(.*?)</code></dd>", page.read_text("utf-8"), re.DOTALL)
    return [shlex.split(html.unescape(re.sub(r"<wbr>", "", text))) for text in found]


def again(words: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Run a command with a page, then what this shows, in another folder; return the rows of both as JSON."""
    page, data = tmp_path / "page.html", tmp_path / "data.json"
    assert cli.run([*words, "--report", str(page), "--json", str(data)]) == 0
    first = [json.loads(data.read_text())]
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    commands = shown(page)
    assert commands
    for program, *rest in commands:
        assert program == "fewbits"
        assert cli.run([*rest, "--json", str(data)]) == 0
        first.append(json.loads(data.read_text()))
    return first


def test_rows_of_a_checkpoint_are_measured_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "a model.safetensors"
    w = np.random.default_rng(0).standard_normal((2, 8, 64)).astype(np.float32)
    save_file({"w": w[0], "left out": w[1]}, path)
    words = ["compare", str(path), "--formats", f"{FORMAT},mxfp4", "--exclude", "left *"]
    words += ["--min-qsnr", "19.123456789", "--scale-rule", "ceil"]
    whole, *rows = again(words, tmp_path, monkeypatch)
    for row in rows:
        assert row["checkpoint"]["min_qsnr_db"] == whole["checkpoint"]["min_qsnr_db"] == 19.123456789
        (score,) = row["checkpoint"]["scores"]
        assert score in whole["checkpoint"]["scores"]


def test_a_budget_that_most_formats_alone_exceed_is_left_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "m.safetensors"
    save_file({"w": np.random.default_rng(0).standard_normal((8, 64)).astype(np.float32)}, path)
    words = ["compare", str(path), "--formats", "mxfp4,mxfp8_e4m3", "--budget", "4.5"]
    whole, *rows = again(words, tmp_path, monkeypatch)
    assert [s for row in rows for s in row["checkpoint"]["scores"]] == whole["checkpoint"]["scores"]


def test_a_matrix_is_found_from_elsewhere_with_its_ending_in_capitals(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "A.MTX"
    path.write_text(SYSTEM)
    whole, *rows = again(["compare", str(path), "--formats", f"{FORMAT},bf16"], tmp_path, monkeypatch)
    assert [score for row in rows for score in row["scores"]] == whole["scores"]


def test_a_system_is_solved_again_in_a_format_with_its_bound_to_the_last_digit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "A.mtx"
    path.write_text(SYSTEM)
    words = ["solve", str(path), "--solver", "cg", "--precision", FORMAT, "--rtol", "1.23456789e-3"]
    rows = again(words, tmp_path, monkeypatch)
    (first,), (second,) = (row["scores"] for row in rows)
    assert first["precision"] == second["precision"] == FORMAT
    assert first["goal"] == second["goal"] == 1.23456789e-3


@pytest.mark.parametrize(
    ("function", "words", "record"),
    [
        ("compare_models", ["--size", "base", "--include", "a b*", "--seeds", "3"], fake.tasks()[3::6]),
        (
            "compare_models",
            ["--train", "--task", "bytes", "--scale-rule", "ceil"],
            fake.tasks(train=True)[1:14:4],
        ),
        ("compare_models", ["--model", "my:model"], [replace(fake.tasks(1)[1], task="my:model")]),
        (
            "compare_codecs",
            ["--codecs", "mxfp4", "--steps", "7", "--links", "1,2.5", "--latency-us", "1.23456789"],
            (scaling.comparison(),),
        ),
    ],
)
def test_all_that_decides_about_a_model_is_in_its_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, function: str, words: list[str], record: Any
) -> None:
    calls = []

    def measured(tasks: Any, over: Any, **rest: Any) -> Any:
        calls.append((tasks, over, {name: value for name, value in rest.items() if name != "progress"}))
        return record

    monkeypatch.setattr(f"fewbits.compare.{function}", measured)
    again(["compare", *words], tmp_path, monkeypatch)
    rows = [(s.task, s.format) for s in record] if function == "compare_models" else []
    rows = rows or [("bytes", score.codec) for score in record[0].scores]
    (_, _, options), *others = calls
    assert len(others) == len(rows)
    for _, (what,), of in others:
        # A scale rule chooses power-of-two scales, and is refused beside other formats alone.
        idle = "scale_rule" in options and not str(what).startswith("mx")
        assert of == options | ({"scale_rule": "floor"} if idle else {})
    told = {(task, str(what)) for (task,), (what,), _ in others}
    assert told == set(rows)
