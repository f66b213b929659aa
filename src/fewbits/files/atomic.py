"""Write a whole file or nothing: a reader never sees half of one, and a failed write leaves the old one."""

from __future__ import annotations

import contextlib
import os
import secrets
from collections.abc import Iterable
from pathlib import Path

from fewbits.errors import ArgumentError


def write_text(path: str | os.PathLike[str], text: str) -> None:
    """Replace the file at `path` by `text` in UTF-8, all of it or none of it.

    Raises as `write_bytes` does.
    """
    write_bytes(path, text.encode("utf-8"))


def write_bytes(path: str | os.PathLike[str], data: bytes) -> None:
    """Replace the file at `path` by `data`, all of it or none of it.

    Raises as `write_pieces` does.
    """
    write_pieces(path, [data])


def write_pieces(path: str | os.PathLike[str], pieces: Iterable[bytes | bytearray | memoryview]) -> None:
    """Replace the file at `path` by `pieces` one after the other, all of them or none.

    The bytes go to a new file in the same folder, reach the disk, and take the name `path` in one step. A
    symbolic link keeps pointing where it did and its target is replaced; an old file's permissions are kept.

    Raises:
        ArgumentError: The folder does not exist, or `path` names something that is not a regular file.
        OSError: The operating system refused: no permission, no space left.
    """
    target = Path(os.path.realpath(path))
    _check(Path(path), target)
    # A short name of its own: the target's name plus a suffix could exceed the length that a folder allows.
    temporary = target.parent / f".fewbits-{secrets.token_hex(8)}.tmp"
    try:
        # "x" never opens a file that somebody else made, and the new file's mode obeys the umask.
        with temporary.open("xb") as file:
            for piece in pieces:
                file.write(piece)
            file.flush()
            os.fsync(file.fileno())
        if target.exists():
            temporary.chmod(target.stat().st_mode & 0o7777)
        temporary.replace(target)
    except BaseException:  # an interrupt from the keyboard must not leave the temporary file either
        with contextlib.suppress(OSError):
            temporary.unlink()
        raise
    sync_folder(target.parent)


def _check(given: Path, target: Path) -> None:
    """Refuse targets that cannot be replaced before anything is written."""
    if not target.parent.is_dir():
        raise ArgumentError(
            f"cannot write {given}: the folder {target.parent} does not exist; create it or give another path"
        )
    if target.exists() and not target.is_file():
        raise ArgumentError(
            f"cannot write {given}: it is a folder or a device, expected a file; give another path"
        )


def sync_folder(folder: Path) -> None:
    """Let the new name itself reach the disk, where the system can open a folder (not on Windows)."""
    with contextlib.suppress(OSError):
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
