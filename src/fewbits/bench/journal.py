"""The clock of a run and all that it did on the way, on disk: a run that is killed loses no time.

The journal is written line by line. Its clock goes on from the last line, so that the time up to the last
step before a kill counts; the steps since the last checkpoint are done again, and count again. A kill costs
time and never gains any. What is not counted is the time in which no process runs.
"""

from __future__ import annotations

import json
import os
import time
from dataclasses import asdict
from itertools import pairwise
from math import isfinite
from pathlib import Path
from typing import Any

from fewbits.errors import ArgumentError, DataError
from fewbits.records import Evaluation, RanPrecision

NAME = "journal.jsonl"
_ROUNDING = 1e-6  # seconds by which a clock that goes on may be rounded


class Journal:
    """Lines of JSON, each with the clock in seconds; begin with :meth:`start`.

    Args:
        path: of the file; None: nothing is kept, as in all processes but the first.
        settings: that decide the run; a journal of others is refused.
        resume: go on with what is there; else a journal that is there is refused.

    Raises:
        ArgumentError: a journal is there and ``resume`` is not set, or it is one of other settings.
        DataError: the file is no journal.
    """

    def __init__(self, path: Path | None, settings: dict[str, Any], *, resume: bool) -> None:
        self.path, self.settings = path, json.loads(json.dumps(settings))
        self.seconds, self.resumed, self.started_ms = 0.0, -1, 0
        self.last_step = 0
        self.evaluations: list[Evaluation] = []
        self.precision: list[RanPrecision] = []
        self.stopped = self.reached = False
        self._began = time.monotonic()
        lines = _lines(path) if path is not None else []
        if lines and not resume:
            raise ArgumentError(
                f"{path} is of a run that began; go on with it by --resume, or choose another --out"
            )
        for line in lines:
            self._read(line)
        if self.stopped and not (self.evaluations and self.precision):
            raise broken(self.path)
        self._file = None
        if path is not None and not self.stopped:
            path.parent.mkdir(parents=True, exist_ok=True)
            self._file = path.open("a", encoding="utf-8")
            self._file.truncate(_whole(path))  # half a line, as a kill leaves it, would spoil the next one

    def start(self) -> None:
        """Start the clock: from here on everything counts."""
        self._began = time.monotonic() - self.seconds
        self.resumed += 1
        now = round(1000 * time.time())
        self.started_ms = self.started_ms or now
        self._write("start", settings=self.settings, time_ms=now)

    def back_to(self, step: int) -> None:
        """Go on from the checkpoint of a step: evaluations behind it are made again.

        Raises:
            DataError: the journal does not know of that step, so that its time is lost.
        """
        if self.path is not None and step > self.last_step:
            raise DataError(
                f"the checkpoint beside {self.path} is of step {step}, and the journal ends with step"
                f" {self.last_step}: the time between is not known; make the run again, in another --out"
            )
        self.evaluations = [e for e in self.evaluations if e.step <= step]
        self._write("back", step=step)

    def step(self, step: int, *, sync: bool = False) -> None:
        """Write that a step is done; with ``sync``, before a checkpoint, through to the disk."""
        self._write("step", step=step)
        if sync and self._file is not None:
            os.fsync(self._file.fileno())

    def saw(self, ran: RanPrecision) -> None:
        """Write in which formats a step computed."""
        if ran not in self.precision:
            self.precision.append(ran)
            self._write("precision", ran=asdict(ran))

    def evaluated(self, step: int, began: float, value: float) -> None:
        """Write what an evaluation found, and when it began."""
        found = Evaluation(step, began, self.now(), value)
        self.evaluations.append(found)
        self._write("evaluation", evaluation=asdict(found))

    def stop(self, *, reached: bool) -> None:
        """Stop the clock, with or without the target reached."""
        self._write("stop", reached=reached)
        if self._file is not None:  # before the checkpoint of the last step, which ends the run
            os.fsync(self._file.fileno())
        self.stopped, self.reached = True, reached

    def now(self) -> float:
        """Return the seconds that the clock shows."""
        return time.monotonic() - self._began

    def close(self) -> None:
        """Close the file."""
        if self._file is not None:
            self._file.close()

    def _write(self, event: str, **facts: object) -> None:
        self.seconds = self.now()
        if self._file is not None:
            self._file.write(json.dumps({"event": event, "seconds": self.seconds, **facts}) + "\n")
            self._file.flush()  # a kill then leaves it to the operating system, which writes it

    def _read(self, line: Any) -> None:
        try:
            event, before, self.seconds = line["event"], self.seconds, _typed(line["seconds"], float)
            _check_order(before, self.seconds)
            if self.resumed < 0 and event != "start":
                raise TypeError
            if event == "start":
                self._check(_typed(line["settings"], dict))
                self.resumed += 1
                self.started_ms = self.started_ms or _typed(line["time_ms"], int)
            elif event == "step":
                self.last_step = max(self.last_step, _typed(line["step"], int))
            elif event == "back":
                step = _typed(line["step"], int)
                self.evaluations = [e for e in self.evaluations if e.step <= step]
            elif event == "evaluation":
                found, last = _evaluation(line["evaluation"]), self.evaluations[-1:]
                _check_order(0.0, *(e.seconds for e in last), found.began, found.seconds, self.seconds)
                if found.seconds <= 0 or found.step <= max((e.step for e in last), default=0):
                    raise TypeError
                self.evaluations.append(found)
            elif event == "precision":
                self.precision.append(_ran(line["ran"]))
            elif event == "stop":
                self.stopped, self.reached = True, _typed(line["reached"], bool)
            else:
                raise TypeError
        except (KeyError, TypeError):
            raise broken(self.path) from None

    def _check(self, settings: dict[str, Any]) -> None:
        differ = [k for k in {**settings, **self.settings} if settings.get(k) != self.settings.get(k)]
        if differ:
            raise ArgumentError(
                f"{self.path} is of a run with {differ[0]}={settings.get(differ[0])!r}, and this one has"
                f" {self.settings.get(differ[0])!r}; choose another --out"
            )


def broken(path: Path | None) -> DataError:
    """Return the error of a file that is no journal, or none that a run wrote."""
    return DataError(f"{path} is no journal of a benchmark; remove it, or choose another --out")


def _check_order(*seconds: float) -> None:
    """Raise TypeError unless a clock showed these, one after the other."""
    if not all(map(isfinite, seconds)) or any(b < a - _ROUNDING for a, b in pairwise(seconds)):
        raise TypeError


def _typed(value: Any, kind: type) -> Any:
    """Return a value of its type; an integer is a float, too, and a truth value is no number."""
    if kind is float and type(value) is int:
        return float(value)
    if type(value) is not kind:
        raise TypeError
    return value


def _evaluation(found: dict[str, Any]) -> Evaluation:
    floats = (_typed(found[name], float) for name in ("began", "seconds", "value"))
    return Evaluation(_typed(found["step"], int), *floats)


def _ran(found: dict[str, Any]) -> RanPrecision:
    attention, communication = (
        None if found[name] is None else str(_typed(found[name], str))
        for name in ("attention", "communication")
    )
    layers = tuple(_typed(name, str) for name in _typed(found["wide_layers"], list))
    return RanPrecision(_typed(found["linear"], str), attention, communication, layers)


def _whole(path: Path) -> int:
    """Return the bytes of the complete lines: the last one of a killed run may be cut off."""
    return path.read_bytes().rfind(b"\n") + 1


def _lines(path: Path) -> list[Any]:
    if not path.exists():
        return []
    try:
        return [json.loads(line) for line in path.read_bytes()[: _whole(path)].decode().split("\n")[:-1]]
    except (ValueError, RecursionError):
        raise broken(path) from None
