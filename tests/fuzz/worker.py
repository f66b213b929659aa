"""Run mutated inputs in this process; a shared file says which, for the supervisor to read."""

from __future__ import annotations

import argparse
import importlib
import mmap
import random
import shutil
import struct
import time
import traceback
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.fuzz.target import LARGEST, Target, mutated

# Whether the seeds are done, executions begun, executions accepted, length of the input that follows.
HEAD = struct.Struct("<QQQQ")
_KEPT = 1000  # accepted inputs to go on from


def target_of(name: str) -> Target:
    """Return ``tests.fuzz.<name>``'s TARGET; ``module:ATTRIBUTE`` names another."""
    module, _, attribute = name.partition(":")
    found = getattr(importlib.import_module(f"tests.fuzz.{module}"), attribute or "TARGET")
    assert isinstance(found, Target)
    return found


class Session:
    """One process's executions: runs inputs, saves those that fail, keeps those that were accepted."""

    def __init__(self, target: Target, seed: int, findings: Path, folder: Path, shared: Any = None) -> None:
        self.target, self.seed, self.findings, self.shared = target, seed, findings, shared
        self.executions = self.accepted = self.warm = 0
        self.found: dict[str, Path] = {}  # where it was raised -> the first input that did
        self.folder = folder  # an empty one, which whoever ends this process removes
        self.corpus = list(target.seeds())

    def one(self, data: bytes) -> None:
        """Run one input and remember it if it was accepted."""
        self.executions += 1
        if self.shared is not None:
            self.shared[HEAD.size : HEAD.size + len(data)] = data
        self.tell(len(data))
        try:
            accepted = self.target.run(data, self.folder)
        except Exception as error:
            self._report(data, error)
            accepted = False
        finally:
            for left in self.folder.iterdir():
                shutil.rmtree(left) if left.is_dir() else left.unlink()
        if accepted:
            self.accepted += 1
            if len(self.corpus) < _KEPT:
                self.corpus.append(data)

    def warm_up(self) -> None:
        """Run the seeds: what is loaded when it is first used counts for no input that follows."""
        for seed in tuple(self.corpus):
            self.one(seed)
        self.warm = 1

    def tell(self, length: int) -> None:
        """Show the supervisor how far this is; the input that runs now has ``length`` bytes."""
        if self.shared is not None:
            self.shared[: HEAD.size] = HEAD.pack(self.warm, self.executions, self.accepted, length)

    def _report(self, data: bytes, error: Exception) -> None:
        frames = traceback.extract_tb(error.__traceback__)
        ours = [f for f in frames if "fewbits" in f.filename] or frames
        where = f"{type(error).__name__} at {Path(ours[-1].filename).name}:{ours[-1].lineno}"
        if where not in self.found:
            self.found[where] = saved(self.findings, where, data)
            print(
                f"finding: {where}: {str(error)!r:.200} (seed {self.seed}, saved as {self.found[where]})",
                flush=True,
            )

    def mutation(self, rng: random.Random, data: bytes) -> bytes:
        return mutated(self.target, rng, data, rng.choice(self.corpus))

    def explore(self, more: Callable[[], bool]) -> None:
        """Run mutations of the seeds and of what was accepted while ``more()`` holds."""
        while more():
            rng = random.Random(f"{self.seed} {self.executions}")
            self.one(self.mutation(rng, rng.choice(self.corpus)))


def saved(findings: Path, where: str, data: bytes) -> Path:
    """Write an input that was a finding; its name says what it does."""
    findings.mkdir(parents=True, exist_ok=True)
    path = findings / ("".join(c if c.isalnum() else "-" for c in where) + ".input")
    path.write_bytes(data)
    return path


def main() -> None:
    """Work for a time or a number of executions; findings are printed as they are found."""
    options = argparse.ArgumentParser()
    options.add_argument("target")
    given_by = {"seconds": float, "executions": int, "seed": int}
    given_by |= dict.fromkeys(("findings", "folder", "shared"), Path)
    for name, kind in given_by.items():
        options.add_argument(f"--{name}", type=kind, required=True)
    given = options.parse_args()
    warnings.simplefilter("ignore")  # of NumPy, about values that are meant to be extreme
    target = target_of(given.target)
    with given.shared.open("r+b") as file:
        shared = mmap.mmap(file.fileno(), HEAD.size + LARGEST)
        session = Session(target, given.seed, given.findings, given.folder, shared)
        session.warm_up()
        end = time.monotonic() + given.seconds
        session.explore(lambda: session.executions < given.executions and time.monotonic() < end)
        session.tell(0)


if __name__ == "__main__":
    main()
