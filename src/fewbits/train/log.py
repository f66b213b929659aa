"""The log of a run: JSON lines, and TensorBoard's files where that is installed."""

from __future__ import annotations

import json
from collections.abc import Iterable
from importlib.util import find_spec
from math import isfinite, nan
from pathlib import Path
from typing import Any

from fewbits.errors import DataError
from fewbits.files.atomic import write_text

_SCALARS = ("loss", "lr", "gradient_norm", "loss_scale")


class Log:
    """Appends to ``log.jsonl`` in a folder: a record for each step, each operand seen and each warning.

    A number that is infinite or NaN is null, as JSON has neither.

    Args:
        folder: of the run.
        step: of the checkpoint that the run goes on from; later records are cut off, to be written again.

    Raises:
        DataError: the file is no log, or lacks steps up to ``step``.
    """

    def __init__(self, folder: Path, step: int) -> None:
        self.path = folder / "log.jsonl"
        records = [r for r in _records(self.path) if r["step"] <= step] if step else []
        done = sum(r["kind"] == "step" for r in records)
        if done != step:
            raise DataError(
                f"{self.path} has {done} of the {step} steps of the checkpoint beside it; put back the log"
                " that the run wrote, or make the run again in another folder"
            )
        write_text(self.path, "".join(json.dumps(record) + "\n" for record in records))
        self.file = self.path.open("a", encoding="utf-8")
        self.board: Any = None
        if find_spec("tensorboard") is not None:
            from torch.utils.tensorboard import SummaryWriter

            self.board = SummaryWriter(folder, purge_step=step)

    def step(self, record: dict[str, object]) -> None:
        """Write what happened in one step."""
        self._write("step", record)
        for name in _SCALARS if self.board is not None else ():
            if record[name] is not None:
                self.board.add_scalar(name, record[name], record["step"])

    def seen(self, records: Iterable[dict[str, object]], step: int) -> None:
        """Write what rounding did to operands."""
        for record in records:
            self._write("operand", record | {"step": step})
            if self.board is not None:
                place = f"{record['layer']}/{record['role']}"
                self.board.add_scalar(f"saturated/{place}", record["saturated_fraction"], step)
                self.board.add_scalar(f"flushed/{place}", record["flushed_fraction"], step)

    def warning(self, text: str, step: int) -> None:
        """Write a warning."""
        self._write("warning", {"step": step, "text": text})

    def flush(self) -> None:
        """Flush the files."""
        self.file.flush()
        if self.board is not None:
            self.board.flush()

    def close(self) -> None:
        """Close the files."""
        self.file.close()
        if self.board is not None:
            self.board.close()

    def _write(self, kind: str, record: dict[str, object]) -> None:
        finite = {k: None if isinstance(x, float) and not isfinite(x) else x for k, x in record.items()}
        self.file.write(json.dumps({"kind": kind, **finite}) + "\n")


def column(folder: Path, name: str) -> list[float]:
    """Return one number of each step of the run in ``folder``, as ``loss`` or ``seconds``; NaN for null."""
    steps = [r for r in _records(folder / "log.jsonl") if r["kind"] == "step"]
    return [nan if r[name] is None else r[name] for r in steps]


def warnings(folder: Path) -> list[str]:
    """Return the warnings of the run in ``folder``."""
    return [r["text"] for r in _records(folder / "log.jsonl") if r["kind"] == "warning"]


def _records(path: Path) -> list[dict[str, Any]]:
    """Return the records of the complete lines: the last one of a killed run may be cut off.

    Raises:
        DataError: a line is no record.
    """
    try:
        lines = path.read_text(encoding="utf-8").split("\n")[:-1] if path.exists() else []
        records = [json.loads(line) for line in lines]
        if all(isinstance(r["kind"], str) and isinstance(r["step"], int) for r in records):
            return records
    except (ValueError, KeyError, TypeError):
        pass
    raise DataError(f"{path} is no log of a training run; remove its folder, or choose another one")
