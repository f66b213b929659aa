"""Processes of one group that stay alive for many tests, since starting them takes longer than a test."""

import tempfile
import traceback
from collections.abc import Callable
from contextlib import suppress
from multiprocessing.connection import Connection, wait
from typing import Any

import torch

from tests.copies import copies
from tests.processes import joined

PATIENCE = 240.0
Work = Callable[[int, int], Any]


def _serve(rank: int, size: int, folder: str, orders: Connection) -> None:
    with joined(rank, folder, size, PATIENCE):
        while (work := orders.recv()) is not None:
            torch.manual_seed(0)
            try:
                work(rank, size)
            except BaseException:
                orders.send(traceback.format_exc())
                return  # the others wait for this one, or raise soon; the team is made anew
            orders.send(None)


class Team:
    """So many processes; :meth:`run` calls a function in each of them."""

    def __init__(self, size: int) -> None:
        self.size = size
        self._processes: list[Any] = []

    def run(self, work: Work) -> None:
        """Call ``work(rank, size)`` in each process; raise what the first to fail raised."""
        if not self._processes:
            self._start()
        for orders in self._orders:
            orders.send(work)
        waiting = list(self._orders)
        while waiting:
            ready = wait(waiting, timeout=PATIENCE)
            said = [f"nothing within {PATIENCE} seconds"] if not ready else []
            for orders in ready:
                try:
                    said.append(orders.recv())
                except EOFError:
                    said.append("a process that ended")
                waiting.remove(orders)
            failed = [text for text in said if text is not None]
            if failed:
                self.end()
                raise AssertionError("\n".join(failed))

    def _start(self) -> None:
        context = copies()
        self._folder = tempfile.TemporaryDirectory()
        pipes = [context.Pipe() for _ in range(self.size)]
        self._orders = [mine for mine, _ in pipes]
        for rank, (_, theirs) in enumerate(pipes):
            process = context.Process(
                target=_serve, args=(rank, self.size, self._folder.name, theirs), daemon=True
            )
            process.start()
            theirs.close()
            self._processes.append(process)

    def end(self) -> None:
        """End the processes, by their own will if they listen."""
        for orders, process in zip(self._orders if self._processes else (), self._processes, strict=True):
            with suppress(OSError):
                orders.send(None)
            process.join(timeout=10)
            process.kill()
            process.join()
        if self._processes:
            self._folder.cleanup()
        self._processes = []
