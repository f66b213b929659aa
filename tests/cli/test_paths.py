"""No command overwrites what it reads, another output of its own, or a file of another kind."""

import hashlib
import itertools
import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Annotated, Any, get_type_hints

import numpy as np
import pytest
import typer
from safetensors.numpy import save_file

from fewbits.cli import main as cli
from fewbits.cli.kinds import TENSORS, Reads, Writes
from fewbits.cli.paths import guarded, paths_of
from fewbits.errors import ArgumentError

APP = typer.main.get_command(cli.app)
PATHS = {name: paths_of(command.callback) for name, command in APP.commands.items()}


def pairs(written: Any) -> Any:
    """Every two parameters of a command that are paths, and of which so many at least are written."""
    return [
        pytest.param(command, one, other, id=f"{command}-{one}-{other}")
        for command, marked in PATHS.items()
        for one, other in itertools.combinations(marked, 2)
        if isinstance(marked[one], Writes) + isinstance(marked[other], Writes) >= written
    ]


def typed(command: Any, **given: Any) -> Any:
    """The command line that gives paths to parameters, and something to what has to be there besides."""
    words = [command]
    for parameter in APP.commands[command].params:
        value = given.get(parameter.name)
        if parameter.param_type_name == "argument":
            needed = parameter.required or any(
                p.name in given for p in APP.commands[command].params if p.param_type_name == "argument"
            )
            words += [str(value)] if value is not None else ["some.safetensors"] * needed
        elif value is not None:
            words += [parameter.opts[0], str(value)]
        elif parameter.required:
            words += [parameter.opts[0], "1"]
    return words


def hashes(folder: Path) -> dict[str, str]:
    found = (p for p in folder.rglob("*") if p.is_file())
    return {str(p.relative_to(folder)): hashlib.sha256(p.read_bytes()).hexdigest() for p in found}


def refused(capsys: pytest.CaptureFixture[str], words: list[str]) -> str:
    assert cli.run(words) == 2, words
    out, err = capsys.readouterr()
    (line,) = [line for line in err.splitlines() if line.startswith("fewbits: ")]
    assert "Traceback" not in out + err
    return line


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """A folder with a file and a folder of every kind that a command reads."""
    monkeypatch.chdir(tmp_path)
    w = {"w": np.arange(64, dtype=np.float32).reshape(8, 8)}
    save_file(w, "model.safetensors")
    Path("sharded").mkdir()
    save_file(w, "sharded/part-1.safetensors")
    places = {"metadata": {}, "weight_map": {"w": "part-1.safetensors"}}
    Path("sharded/model.safetensors.index.json").write_text(json.dumps(places))
    Path("sharded/config.json").write_text("{}")
    text = "%%MatrixMarket matrix array real general\n2 2\n4\n1\n1\n3\n"
    Path("a.mtx").write_text(text)
    Path("texts").mkdir()
    Path("texts/book.txt").write_text("in the beginning " * 500)
    return tmp_path


INPUTS = (
    "model.safetensors",
    "sharded",
    "sharded/model.safetensors.index.json",
    "a.mtx",
    "texts/book.txt",
    "texts",
)


def spellings(path: str) -> list[str]:
    """Other names of an existing file or folder: links of both kinds, absolute, through other folders."""
    Path("link").symlink_to(Path(path).absolute())
    Path("elsewhere").symlink_to(Path(path).absolute().parent)
    found = [path, str(Path(path).absolute()), f"{path}/", f"sharded/../{path}", "link", "./link"]
    found.append(f"elsewhere/{Path(path).name}")
    if Path(path).is_file():
        Path("hard").hardlink_to(path)
        found.append("hard")
    return found


def test_every_parameter_that_is_a_path_is_marked() -> None:
    assert set(PATHS) >= {"cast", "compare", "formats", "inspect", "prune", "solve", "train"}
    for command in APP.commands.values():
        for name, hint in get_type_hints(command.callback, include_extras=True).items():
            said = " ".join(str(getattr(mark, "help", "")) for mark in getattr(hint, "__metadata__", ()))
            if "Path" in str(hint) or re.search(r"\bpath\b|\bfolder\b|\bor a file\b|\bFILE\b", said):
                assert name in PATHS[command.name], (command.name, name)


@pytest.mark.parametrize(("command", "one", "other"), pairs(1))
def test_two_parameters_that_name_one_file_are_refused_and_nothing_changes(
    capsys: pytest.CaptureFixture[str], place: Path, command: Any, one: Any, other: Any
) -> None:
    names = {path: [path] for path in INPUTS} | {"model.safetensors": spellings("model.safetensors")}
    before = hashes(place)
    for path, same in names.items():
        for name in same:
            refused(capsys, typed(command, **{one: path, other: name}))
            refused(capsys, typed(command, **{one: name, other: path}))
    assert hashes(place) == before


@pytest.mark.parametrize(("command", "one", "other"), pairs(2))
def test_two_outputs_that_are_not_there_yet_are_refused_when_they_are_one(
    capsys: pytest.CaptureFixture[str], place: Path, command: Any, one: Any, other: Any
) -> None:
    Path("dangling").symlink_to("new.out")
    Path("elsewhere").symlink_to("texts")
    before = hashes(place)
    for name in (
        "new.out",
        "./new.out",
        str(place / "new.out"),
        "dangling",
        "texts/../new.out",
        "elsewhere/../new.out",
    ):
        assert "would overwrite each other" in refused(
            capsys, typed(command, **{one: "new.out", other: name})
        )
    assert hashes(place) == before


OUTPUTS = [
    pytest.param(command, name, id=f"{command}-{name}")
    for command, marked in PATHS.items()
    for name, mark in marked.items()
    if isinstance(mark, Writes)
]


RUNS = [("train", "out"), ("bench", "out")]  # folders that are made with their parents


@pytest.mark.parametrize(("command", "name"), OUTPUTS)
def test_a_file_of_another_kind_is_not_replaced(
    capsys: pytest.CaptureFixture[str], place: Path, command: Any, name: str
) -> None:
    kind = PATHS[command][name].kind
    Path("page.html").write_text("<!DOCTYPE html><html>somebody's own page</html>")
    Path("list.json").write_text('{"a": 1}')
    Path("picture.png").write_bytes(b"\x89PNG\r\n\x1a\n" + bytes(2000))
    before = hashes(place)
    others = ["page.html", "list.json", "sharded/config.json", "picture.png", "texts/book.txt", "/dev/null"]
    others += ["a.mtx"] * (kind.name != "a MatrixMarket file")
    others += ["model.safetensors"] * ("safetensors" not in kind.name)
    others += ["texts"] * (not kind.folder)
    for path in others:
        assert path in refused(capsys, typed(command, **{name: path}))
    assert hashes(place) == before


@pytest.mark.parametrize(("command", "name"), [p for p in OUTPUTS if p.values not in RUNS])
def test_an_output_in_a_folder_that_is_not_there_is_refused_before_any_work(
    capsys: pytest.CaptureFixture[str], place: Path, command: Any, name: str
) -> None:
    assert "does not exist; create it first" in refused(capsys, typed(command, **{name: "gone/new.out"}))


@pytest.mark.parametrize(
    "words",
    [
        ["prune", "sharded", "--out", "sharded/part-1.safetensors"],
        ["prune", "sharded", "--out", "sharded/new.safetensors"],
        ["prune", "sharded/model.safetensors.index.json", "--out", "sharded/part-1.safetensors"],
        ["prune", "sharded/model.safetensors.index.json", "--out", "linked.safetensors"],
        ["prune", "sharded", "--out", "linked.safetensors"],
        ["compare", "sharded", "--json", "sharded/config.json"],
        ["compare", "sharded", "--json", "sharded/model.safetensors.index.json"],
        ["compare", "--task", "digits,texts", "--report", "texts/book.txt"],
        ["compare", "--task", "texts,bytes", "--json", "texts/below/notes.json"],
        ["cast", "sharded", ".", "--format", "mxfp4"],
        ["cast", "sharded", "linked", "--format", "mxfp4"],
        ["cast", "sharded", "new", "--format", "mxfp4", "--json", "new/model.safetensors.index.json"],
        ["train", "--task", "texts/book.txt", "--out", "texts"],
        ["train", "--task", "texts/book.txt", "--out", "runs", "--json", "runs/list.json"],
    ],
    ids=" ".join,
)
def test_a_part_of_what_is_read_is_not_overwritten(
    capsys: pytest.CaptureFixture[str], place: Path, words: list[str]
) -> None:
    Path("texts/below").mkdir()
    Path("texts/below/notes.json").write_text("{}")
    Path("linked.safetensors").symlink_to("sharded/part-1.safetensors")
    Path("linked").mkdir()
    Path("linked/part-1.safetensors").hardlink_to("sharded/part-1.safetensors")
    before = hashes(place)
    refused(capsys, words)
    assert hashes(place) == before


@pytest.mark.parametrize(
    "words",
    [
        ["formats", "--json", "r.json"],
        ["formats", "mxfp4", "--json", "r.json"],
        ["inspect", "model.safetensors", "--json", "r.json"],
        ["inspect", "sharded", "--json", "sharded/r.json"],
        ["compare", "model.safetensors", "--formats", "mxfp4", "--json", "r.json", "--report", "r.html"],
        [
            "compare",
            "sharded",
            "--formats",
            "mxfp4",
            "--json",
            "sharded/r.json",
            "--report",
            "sharded/r.html",
        ],
        ["compare", "a.mtx", "--formats", "bf16", "--json", "r.json"],
        ["cast", "model.safetensors", "n.safetensors", "--format", "mxfp4", "--json", "r.json"],
        ["cast", "sharded", "new", "--format", "mxfp4"],
        ["prune", "model.safetensors", "--out", "n.safetensors", "--json", "r.json", "--report", "r.html"],
        ["solve", "a.mtx", "--out", "x.mtx", "--json", "r.json", "--report", "r.html"],
    ],
    ids=" ".join,
)
def test_inputs_stay_as_they_are_and_a_second_run_replaces_what_the_first_wrote(
    capsys: pytest.CaptureFixture[str], place: Path, words: list[str]
) -> None:
    before = hashes(place)
    for _ in range(2):
        assert cli.run(words) == 0, capsys.readouterr().err
        after = hashes(place)
        assert {name: after[name] for name in before} == before
        assert len(after) > len(before)


@pytest.mark.parametrize(
    ("words", "kind"),
    [
        (["inspect", "model.safetensors", "--json"], "inspect"),
        (["compare", "model.safetensors", "--formats", "mxfp4", "--json"], "checkpoint"),
        (["cast", "model.safetensors", "n.safetensors", "--format", "mxfp4", "--json"], "cast"),
        (["prune", "model.safetensors", "--json"], "pruning"),
        (["solve", "a.mtx", "--json"], "system"),
    ],
    ids=lambda v: v[0] if isinstance(v, list) else v,
)
def test_a_dash_is_the_standard_output_and_then_it_holds_the_report_alone(
    capfd: pytest.CaptureFixture[str], place: Path, words: list[str], kind: Any
) -> None:
    assert cli.run([*words, "-"]) == 0
    out, err = capfd.readouterr()
    assert json.loads(out)["kind"] == kind
    assert "wrote -" not in err
    assert not Path("-").exists()


def test_no_item_of_a_list_is_the_folder_that_one_is_in(place: Path) -> None:
    def command(task: Annotated[str, Reads(several=True)], out: Annotated[Path, Writes(TENSORS)]) -> None:
        """Write beside what is read."""

    for task in ("texts,", ",texts", " ,texts , "):
        guarded(command)(task, Path("new.safetensors"))
        with pytest.raises(ArgumentError, match=r"--out texts.new.safetensors lies in --task texts"):
            guarded(command)(task, Path("texts/new.safetensors"))


def test_the_data_beside_an_onnx_model_is_a_file_of_its_own(
    capsys: pytest.CaptureFixture[str], place: Path
) -> None:
    Path("e.onnx").write_bytes(b"")
    Path("e.onnx.data").write_bytes(b"values")
    words = ["cast", "e.onnx", "f.onnx", "--layout", "onnx", "--format", "mxfp4", "--json"]
    assert "would overwrite each other" in refused(capsys, [*words, "f.onnx.data"])
    assert "which is read; give another name" in refused(capsys, [*words, "e.onnx.data"])
    assert Path("e.onnx.data").read_bytes() == b"values"


def test_a_dash_is_no_place_for_two_reports_or_for_bytes(
    capsys: pytest.CaptureFixture[str], place: Path
) -> None:
    assert "would overwrite each other" in refused(
        capsys, ["compare", "model.safetensors", "--json", "-", "--report", "-"]
    )
    assert "--out -: a MatrixMarket file" in refused(capsys, ["solve", "a.mtx", "--out", "-"])


@pytest.mark.parametrize(("command", "name"), OUTPUTS)
def test_a_name_that_is_too_long_for_a_file_is_refused(
    capsys: pytest.CaptureFixture[str], place: Path, command: Any, name: str
) -> None:
    assert "File name too long; give another path" in refused(capsys, typed(command, **{name: "x" * 300}))


@pytest.mark.parametrize(("command", "name"), [p for p in OUTPUTS if p.values in RUNS])
def test_a_folder_below_a_file_is_refused_before_any_work(
    capsys: pytest.CaptureFixture[str], place: Path, command: Any, name: str
) -> None:
    said = refused(capsys, typed(command, **{name: "a.mtx/runs/first"}))
    assert f"--out a.mtx/runs/first: {place / 'a.mtx'} is a file; give a place below a folder" in said


def test_a_pipe_that_is_the_standard_output_is_refused_by_its_path(place: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "fewbits", "formats", "mxfp4", "--json", "/dev/stdout"],
        capture_output=True,
        check=False,
    )
    assert done.returncode == 2
    assert done.stdout == b""
    assert b"--json /dev/stdout is a device; give a file, or - where a text is written" in done.stderr
