"""The built-in tasks that a benchmark trains."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from pathlib import Path

from fewbits.errors import DataError, MissingDependencyError
from fewbits.train.tasks import Task
from fewbits.train.tasks import task as read_task


def parser(question: str, tasks: str) -> argparse.ArgumentParser:
    """Return the options that all of them have: seeds, tasks, and where to write the figures."""
    made = argparse.ArgumentParser(description=question.splitlines()[0])
    made.add_argument("--seeds", type=int, default=3, help="default 3")
    made.add_argument("--tasks", default=tasks, help="comma-separated")
    made.add_argument("--json", type=Path, help="write the figures here too")
    return made


def available(names: str) -> Iterator[Task]:
    """Yield the tasks of a comma-separated list; one whose data are not there is left out by name."""
    for name in names.split(","):
        try:
            yield read_task(name)
        except (DataError, MissingDependencyError) as error:
            print(f"{name} is left out: {error}", file=sys.stderr)
