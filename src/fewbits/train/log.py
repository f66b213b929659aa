"""The log of a run: JSON lines, and TensorBoard's files where that is installed."""

from __future__ import annotations

import json
from collections.abc import Iterable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from fewbits.files.atomic import write_text

_SCALARS = ("loss", "lr", "gradient_norm", "loss_scale")


class Log:
    """Appends to ``log.jsonl`` in a folder: a record for each step, each operand seen and each warning.

    Args:
        folder: of the run.
        step: of the checkpoint that the run goes on from; later records are cut off, to be written again.
    """

    def __init__(self, folder: Path, step: int) -> None:
        self.path = folder / "log.jsonl"
        lines = [line for line in _lines(self.path) if _step(line) <= step] if step else []
        write_text(self.path, "".join(line + "\n" for line in lines))
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
        self.file.write(json.dumps({"kind": kind, **record}) + "\n")


def column(folder: Path, name: str) -> list[float]:
    """Return one number of each step of the run in ``folder``, as ``loss`` or ``seconds``."""
    records = (json.loads(line) for line in _lines(folder / "log.jsonl"))
    return [r[name] for r in records if r["kind"] == "step"]


def warnings(folder: Path) -> list[str]:
    """Return the warnings of the run in ``folder``."""
    records = (json.loads(line) for line in _lines(folder / "log.jsonl"))
    return [r["text"] for r in records if r["kind"] == "warning"]


def _lines(path: Path) -> list[str]:
    """Return the complete lines: the last one of a killed run may be cut off."""
    text = path.read_text(encoding="utf-8") if path.exists() else ""
    return text.split("\n")[:-1]


def _step(line: str) -> int:
    return int(json.loads(line)["step"])
