"""The clock of a run: nobody gains time by being killed."""

import json
import math
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

from fewbits.bench import journal as module
from fewbits.bench.journal import NAME, Journal
from fewbits.errors import ArgumentError, DataError
from fewbits.records import RanPrecision


class Clock:
    """A clock that goes on when it is told to."""

    def __init__(self) -> None:
        self.seconds = 1000.0

    def monotonic(self) -> float:
        return self.seconds

    def time(self) -> float:
        return 1e6 + self.seconds


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    found = Clock()
    monkeypatch.setattr(module, "time", found)
    return found


OPENED: list[Journal] = []


@pytest.fixture(autouse=True)
def closing() -> Iterator[None]:
    yield
    while OPENED:
        OPENED.pop().close()


def journal(path: Path, *, resume: bool = False, **settings: Any) -> Journal:
    OPENED.append(Journal(path / NAME, {"recipe": "fp32", "seed": 0, **settings}, resume=resume))
    return OPENED[-1]


def test_the_clock_goes_on_from_the_last_step_and_not_from_the_checkpoint(
    tmp_path: Path, clock: Clock
) -> None:
    first = journal(tmp_path)
    first.start()
    for step in range(1, 6):
        clock.seconds += 2
        first.step(step)
    first.saw(RanPrecision("mxfp4", None, None))
    first.evaluated(5, 10.0, 90.0)
    clock.seconds += 50  # of a step that a kill ends
    clock.seconds += 1000  # in which nothing runs
    second = journal(tmp_path, resume=True)
    second.start()
    assert second.now() == 10.0
    assert second.resumed == 1
    assert second.started_ms == first.started_ms
    assert [e.step for e in second.evaluations] == [5]
    second.back_to(3)
    assert second.evaluations == []  # it is made again
    clock.seconds += 4
    second.evaluated(5, 12.0, 91.0)
    second.stop(reached=True)
    third = journal(tmp_path, resume=True)
    assert (third.stopped, third.reached) == (True, True)
    assert [(e.step, e.began, e.seconds, e.value) for e in third.evaluations] == [(5, 12.0, 14.0, 91.0)]
    assert third.precision == [RanPrecision("mxfp4", None, None)]


def test_time_before_the_first_checkpoint_counts_too(tmp_path: Path, clock: Clock) -> None:
    first = journal(tmp_path)
    first.start()
    clock.seconds += 7
    first.step(1)
    second = journal(tmp_path, resume=True)
    second.start()
    second.back_to(0)
    assert second.now() == 7


def test_half_a_line_is_cut_off(tmp_path: Path, clock: Clock) -> None:
    first = journal(tmp_path)
    first.start()
    clock.seconds += 3
    first.step(1)
    with (tmp_path / NAME).open("a") as file:
        file.write('{"event": "st')
    second = journal(tmp_path, resume=True)
    second.start()
    assert second.now() == 3
    assert [json.loads(x)["event"] for x in (tmp_path / NAME).read_text().splitlines()] == [
        "start",
        "step",
        "start",
    ]


def test_a_run_that_began_is_not_begun_again_without_being_told(tmp_path: Path) -> None:
    journal(tmp_path).start()
    with pytest.raises(ArgumentError, match="go on with it by --resume"):
        journal(tmp_path)
    with pytest.raises(ArgumentError, match="is of a run with seed=0, and this one has 1"):
        journal(tmp_path, resume=True, seed=1)


def test_a_checkpoint_whose_time_is_lost_is_refused(tmp_path: Path) -> None:
    first = journal(tmp_path)
    first.start()
    first.step(1, sync=True)
    second = journal(tmp_path, resume=True)
    second.start()
    second.back_to(1)
    with pytest.raises(DataError, match="is of step 2, and the journal ends with step 1"):
        second.back_to(2)


START: dict[str, Any] = {
    "event": "start",
    "seconds": 0.0,
    "settings": {"recipe": "fp32", "seed": 0},
    "time_ms": 1,
}
RAN: dict[str, Any] = {"linear": "fp32", "attention": None, "communication": None, "wide_layers": []}
EVALUATION = {"step": 1, "began": 0.5, "seconds": 1.0, "value": 2.0}


def test_these_lines_are_a_journal(tmp_path: Path) -> None:
    given: list[dict[str, Any]] = [
        {"event": "evaluation", "evaluation": EVALUATION},
        {"event": "precision", "ran": RAN},
    ]
    given += [{"event": "step", "step": 1}, {"event": "back", "step": 1}, {"event": "stop", "reached": True}]
    text = "".join(json.dumps(line) + "\n" for line in (START, *({**line, "seconds": 1} for line in given)))
    (tmp_path / NAME).write_text(text)
    assert journal(tmp_path, resume=True).stopped


@pytest.mark.parametrize("text", ["hello\n", "[3]\n", '{"event": "step"}\n', "[" * 100_000 + "\n", "\xff\n"])
def test_what_is_no_journal_is_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / NAME).write_bytes(text.encode("latin-1"))
    with pytest.raises(DataError, match="is no journal of a benchmark"):
        journal(tmp_path, resume=True)


@pytest.mark.parametrize(
    "line",
    [
        {"event": "start", "settings": 3, "time_ms": 1}, {**START, "time_ms": "1"},
        {"event": "step", "step": 1.5},
        {"event": "step", "step": True}, {"event": "step", "step": 1, "seconds": "x"}, {"event": "other"},
        {"event": "back", "step": None}, {"event": "stop", "reached": 1}, {"event": "stop", "reached": True},
        {"event": "evaluation", "evaluation": {**EVALUATION, "value": "2"}},
        {"event": "evaluation", "evaluation": [1, 2, 3, 4]},
        {"event": "evaluation", "evaluation": {**EVALUATION, "seconds": math.nan}},
        {"event": "evaluation", "evaluation": {**EVALUATION, "began": -6.0, "seconds": -5.0}},
        {"event": "evaluation", "evaluation": {**EVALUATION, "began": 0.0, "seconds": 0.0}},
        {"event": "evaluation", "evaluation": {**EVALUATION, "began": 1.0, "seconds": 0.5}},
        {"event": "evaluation", "evaluation": {**EVALUATION, "seconds": 2.0}},  # after the line was written
        {"event": "evaluation", "evaluation": {**EVALUATION, "step": 0}},
        {"event": "step", "step": 1, "seconds": math.inf}, {"event": "step", "step": 1, "seconds": -1.0},
        {"event": "precision", "ran": {**RAN, "linear": 3}},
        {"event": "precision", "ran": {**RAN, "wide_layers": "abc"}}, {"event": "precision", "ran": None},
    ],
)  # fmt: skip
def test_lines_of_other_types_are_refused(tmp_path: Path, line: dict[str, Any]) -> None:
    first = [] if line["event"] == "start" else [START]
    text = "".join(json.dumps({"seconds": 1.0, **one}) + "\n" for one in (*first, line))
    (tmp_path / NAME).write_text(text)
    with pytest.raises(DataError, match="is no journal of a benchmark"):
        journal(tmp_path, resume=True)


@pytest.mark.parametrize("left_out", ["evaluation", "precision"])
def test_a_run_that_stopped_was_evaluated_and_its_formats_were_seen(tmp_path: Path, left_out: str) -> None:
    lines: list[dict[str, Any]] = [
        {"event": "evaluation", "evaluation": EVALUATION},
        {"event": "precision", "ran": RAN},
        {"event": "stop", "reached": True},
    ]
    kept = [{**line, "seconds": 1.0} for line in lines if line["event"] != left_out]
    (tmp_path / NAME).write_text("".join(json.dumps(line) + "\n" for line in (START, *kept)))
    with pytest.raises(DataError, match="is no journal of a benchmark"):
        journal(tmp_path, resume=True)


@pytest.mark.parametrize(("step", "seconds"), [(1, 2.0), (2, 0.7)])
def test_evaluations_come_one_after_the_other(tmp_path: Path, step: int, seconds: float) -> None:
    second = {**EVALUATION, "step": step, "began": seconds - 0.1, "seconds": seconds}
    lines = [START, *({"event": "evaluation", "seconds": 3.0, "evaluation": e} for e in (EVALUATION, second))]
    (tmp_path / NAME).write_text("".join(json.dumps(line) + "\n" for line in lines))
    with pytest.raises(DataError, match="is no journal of a benchmark"):
        journal(tmp_path, resume=True)


def test_the_first_event_is_a_start(tmp_path: Path) -> None:
    (tmp_path / NAME).write_text('{"event": "stop", "seconds": 1, "reached": true}\n')
    with pytest.raises(DataError, match="is no journal of a benchmark"):
        journal(tmp_path, resume=True)


def test_opening_takes_no_line_away(tmp_path: Path, clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    """A kill at any moment of the opening leaves what was there: nothing of it is written again."""
    first = journal(tmp_path)
    first.start()
    path = tmp_path / NAME
    path.write_bytes(path.read_bytes().replace(b", ", b",") + b'{"event": "st')
    whole = path.read_bytes()
    monkeypatch.setattr(json, "dumps", lambda *_, **__: '{"recipe": "fp32", "seed": 0}')
    journal(tmp_path, resume=True)
    assert path.read_bytes() == whole[: whole.rfind(b"\n") + 1]


def test_a_journal_that_stopped_is_not_touched(tmp_path: Path, clock: Clock) -> None:
    first = journal(tmp_path)
    first.start()
    first.saw(RanPrecision("fp32", None, None))
    clock.seconds += 1
    first.evaluated(1, 0.0, 1.0)
    first.stop(reached=True)
    first.close()
    path = tmp_path / NAME
    path.chmod(0o400)
    before = path.read_bytes(), path.stat().st_mtime_ns
    with path.open("rb") as held:
        assert journal(tmp_path, resume=True)._file is None
        assert (held.read(), path.stat().st_mtime_ns) == before


def test_records_come_back_as_they_were(tmp_path: Path, clock: Clock) -> None:
    ran = RanPrecision("fp32", "bf16", "fp16", ("a", "b"))
    first = journal(tmp_path)
    first.start()
    first.saw(ran)
    first.saw(ran)  # is written once
    assert journal(tmp_path, resume=True).precision == [ran]
    assert asdict(ran)["wide_layers"] == ("a", "b")
