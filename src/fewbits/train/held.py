"""One run at a time in a folder: two would mix their logs, and each report the losses of both."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from fewbits.errors import ArgumentError


@contextmanager
def held(folder: Path) -> Iterator[None]:
    """Keep other runs out of a folder while the context lasts; nothing of it stays when a process is killed.

    Args:
        folder: is there.

    Raises:
        ArgumentError: another run holds it.
    """
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise ArgumentError(
                f"another run is writing to {folder}; wait for it, or choose another folder"
            ) from None
        except OSError:
            pass  # some file systems of networks lock no folders
        yield
    finally:
        os.close(descriptor)
