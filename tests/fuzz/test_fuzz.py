"""A short run of each target finds nothing; planted mistakes of each kind are found, saved and run again."""

import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from fewbits.formats import grammar
from tests.fuzz import run
from tests.fuzz.worker import Session, target_of

VALUE = grammar._Parser.value


@pytest.mark.parametrize("executions", [250, pytest.param(1000, marks=pytest.mark.slow)])
@pytest.mark.parametrize("target", ["grammar", "checkpoint"])
def test_so_many_inputs_find_nothing(target: str, executions: int, tmp_path: Path) -> None:
    # So many, not so long: a fast machine looks at the same inputs as a slow or a busy one.
    result = run.fuzz(target, seconds=600, executions=executions, seed=0, findings=tmp_path)
    assert result.findings == []
    assert result.executions == executions
    assert result.accepted > 10


@pytest.mark.parametrize(
    ("target", "told"),
    [
        ("planted:WRONG_ERROR", "KeyError at planted.py"),
        ("planted:HANG", "hang of more than 0.5 seconds"),
        ("planted:CRASH", "crash with status -6"),
        ("planted:MEMORY", "more than 64 MiB of memory"),
    ],
)
def test_a_planted_mistake_is_found_and_its_input_saved(target: str, told: str, tmp_path: Path) -> None:
    given = {"executions": 20, "hang_seconds": 0.5, "memory": 1 << 26}  # with this seed each is met by then
    result = run.fuzz(target, seconds=60, seed=0, findings=tmp_path, **given)
    assert any(told in finding and "seed 0" in finding for finding in result.findings), result.findings
    (saved,) = tmp_path.iterdir()
    assert b"7" in saved.read_bytes()


def explored(target: str, findings: Path, count: int = 1000) -> Session:
    with tempfile.TemporaryDirectory() as folder:
        session = Session(target_of(target), 0, findings, Path(folder))
        session.explore(lambda: session.executions < count)
    return session


def careless(self: grammar._Parser) -> Any:
    return int(self.take()) if self.peek()[0] == "number" else VALUE(self)


def one_more(self: grammar._Parser) -> Any:
    value = VALUE(self)
    return value + 1 if type(value) is int else value


@pytest.mark.parametrize(
    ("wrong", "told"), [(careless, "ValueError at"), (one_more, "AssertionError at grammar.py")]
)
def test_a_mistake_in_the_parser_is_found(
    wrong: Callable[[grammar._Parser], Any], told: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert explored("grammar", tmp_path).found == {}
    monkeypatch.setattr(grammar._Parser, "value", wrong)
    found = explored("grammar", tmp_path).found
    assert any(where.startswith(told) for where in found), found


def test_the_same_seed_runs_the_same_inputs(tmp_path: Path) -> None:
    one, other = explored("grammar", tmp_path, 300), explored("grammar", tmp_path, 300)
    assert one.corpus == other.corpus
    assert one.accepted > 0


def test_a_saved_input_is_run_again_with_its_traceback(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "sound").write_bytes(b"mxfp4")
    (tmp_path / "unsound").write_bytes(b"7")
    assert run.main(["grammar", "--replay", str(tmp_path / "sound")]) == 0
    assert capsys.readouterr().out == "accepted\n"
    with pytest.raises(KeyError, match="seven"):
        run.main(["planted:WRONG_ERROR", "--replay", str(tmp_path / "unsound")])
