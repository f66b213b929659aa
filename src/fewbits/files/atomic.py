"""Atomic writes: a reader never sees half a file, and a failed write leaves the old file."""

from __future__ import annotations

import contextlib
import os
import secrets
from collections.abc import Iterable, Iterator
from io import FileIO
from pathlib import Path

from fewbits.errors import ArgumentError


def write_text(path: str | os.PathLike[str], text: str) -> None:
    """Replace the file at `path` by `text` in UTF-8, atomically.

    Raises:
        ArgumentError: The folder does not exist, or `path` names something that is not a regular file.
        OSError: The operating system reported an error, such as no permission or no space left.
    """
    write_bytes(path, text.encode("utf-8"))


def write_bytes(path: str | os.PathLike[str], data: bytes) -> None:
    """Replace the file at `path` by `data`, atomically.

    Raises:
        ArgumentError: The folder does not exist, or `path` names something that is not a regular file.
        OSError: The operating system reported an error, such as no permission or no space left.
    """
    write_pieces(path, [data])


def write_pieces(path: str | os.PathLike[str], pieces: Iterable[bytes | bytearray | memoryview]) -> None:
    """Replace the file at `path` by the concatenated `pieces`, atomically.

    The bytes are written and flushed to a new file in the same folder, which is then renamed to `path`. If
    `path` is a symbolic link, its target is replaced. The permissions of an old file are kept.

    Raises:
        ArgumentError: The folder does not exist, or `path` names something that is not a regular file.
        OSError: The operating system reported an error, such as no permission or no space left.
    """
    target = Path(os.path.realpath(path))
    _check(Path(path), target)
    # A short random name: the name of the target plus a suffix could be too long for the file system.
    temporary = target.parent / f".fewbits-{secrets.token_hex(8)}.tmp"
    try:
        with naming(path):
            # Mode "x" never opens a file that somebody else made, and the permissions follow the umask.
            file = temporary.open("xb", buffering=0)
        with file:
            for piece in pieces:  # an error of theirs is about another file
                with naming(path):
                    _write(file, memoryview(piece))
            with naming(path):
                os.fsync(file.fileno())
        with naming(path):
            if target.exists():
                temporary.chmod(target.stat().st_mode & 0o7777)
            temporary.replace(target)
    except BaseException:  # an interrupt from the keyboard must not leave the temporary file either
        with contextlib.suppress(OSError):
            temporary.unlink()
        raise
    sync_folder(target.parent)


def _write(file: FileIO, octets: memoryview) -> None:
    while octets:
        octets = octets[file.write(octets) :]


def _check(given: Path, target: Path) -> None:
    """Raise ArgumentError for a target that cannot be replaced, before anything is written."""
    if not target.parent.is_dir():
        raise ArgumentError(
            f"cannot write {given}: the folder {target.parent} does not exist; create it or give another path"
        )
    if target.exists() and not target.is_file():
        raise ArgumentError(
            f"cannot write {given}: it is a folder or a device, expected a file; give another path"
        )


def sync_folder(folder: Path) -> None:
    """Flush a rename to disk, on systems that can open a folder (not on Windows)."""
    with contextlib.suppress(OSError):
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


@contextlib.contextmanager
def naming(file: str | os.PathLike[str]) -> Iterator[None]:
    """Add the name of the intended file to errors of the operating system."""
    try:
        yield
    except OSError as error:
        raise OSError(error.errno, error.strerror, os.fspath(file)) from None
