"""The built-in tasks of ``fewbits compare``: small models, trained here on data that Python brings along."""

from __future__ import annotations

from pathlib import Path

from fewbits.errors import ArgumentError
from fewbits.train.tasks.bytes_task import bytes_task
from fewbits.train.tasks.digits_task import digits_task
from fewbits.train.tasks.task import Progress, Task

__all__ = ["TASKS", "Progress", "Task", "bytes_task", "digits_task", "task"]

TASKS = ("bytes", "digits")


def task(name: str, data: Path | None = None) -> Task:
    """Return a built-in task by name.

    Args:
        name: ``bytes``, a language model of source text, or ``digits``, a classifier of handwritten digits.
        data: the user's own text for ``bytes``, a file or a folder; ``digits`` does not read it.

    Raises:
        ArgumentError: there is no such task.
        DataError: the text cannot be read or is too short.
        MissingDependencyError: ``digits`` without scikit-learn.
    """
    if name == "bytes":
        return bytes_task(data)
    if name == "digits":
        return digits_task()
    raise ArgumentError(f"there is no task {name!r}; expected {' or '.join(TASKS)}")
