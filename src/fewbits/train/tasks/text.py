"""Text for the byte-level model: the source of Python's own library or the user's; and what is held out."""

from __future__ import annotations

import os
import sysconfig
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from fewbits.errors import DataError

LARGEST = 1 << 26  # bytes of the user's text that are read: far more than the few steps of training see
HELD_OUT = 10  # one file, or one byte, in ten is held out


@dataclass(frozen=True)
class Text:
    """Bytes to train on and bytes that training never sees."""

    train: bytes
    held_out: bytes


def library_text(folder: Path | None = None) -> Text:
    """Return the source of the modules at the top of Python's standard library, every tenth file held out.

    Packages in folders are left out: distributions of Python differ in which of them they install.

    Args:
        folder: where the ``.py`` files lie; default: the library of the running Python.

    Raises:
        DataError: there are fewer than ten files, as in a Python whose library is zipped.
    """
    where = folder or Path(sysconfig.get_path("stdlib"))
    # `_sysconfigdata*` is generated at installation and differs from machine to machine.
    files = sorted(f for f in where.glob("*.py") if not f.name.startswith("_sysconfigdata"))
    if len(files) < HELD_OUT:
        raise DataError(
            f"{where} holds {len(files)} source files of Python's library, expected at least {HELD_OUT}; "
            "give the path of a text of your own as the task"
        )
    texts = [file.read_bytes() for file in files]
    held_out = texts[HELD_OUT - 1 :: HELD_OUT]
    train = [text for i, text in enumerate(texts) if i % HELD_OUT != HELD_OUT - 1]
    return Text(b"".join(train), b"".join(held_out))


def own_text(path: Path, *, least: int) -> Text:
    """Return the user's text, its last tenth held out.

    Args:
        path: a file, or a folder whose text files are joined in the order of their paths. Hidden files of a
            folder and files with a zero byte early on, as binary files have, are left out. At most 64 MiB are
            read.
        least: how many bytes the task needs.

    Raises:
        DataError: ``path`` cannot be read, is not text, or holds fewer than ``least`` bytes.
    """
    text = b"".join(text_files(path))
    if len(text) < least:
        raise DataError(
            f"{path} holds {len(text)} bytes of text, and training and evaluation need at least {least}; "
            "give a longer text or a folder of texts"
        )
    cut = len(text) - len(text) // HELD_OUT
    return Text(text[:cut], text[cut:])


def text_files(path: Path) -> list[bytes]:
    """Return the contents of a text file, or of those of a folder as :func:`own_text` takes them.

    Raises:
        DataError: ``path`` cannot be read or is not text.
    """
    if not path.exists():
        raise DataError(f"{path} does not exist; expected a text file or a folder of text files")
    return list(_texts(_files_under(path))) if path.is_dir() else [_one_file(path)]


def _one_file(path: Path) -> bytes:
    if not path.is_file():
        raise DataError(f"{path} is a device or a pipe; expected a text file or a folder of text files")
    text = _read(path, LARGEST)
    if not _is_text(text):
        raise DataError(
            f"{path} is not text: it holds bytes of zero; expected a text file or a folder of them"
        )
    return text


def _files_under(folder: Path) -> Iterable[Path]:
    for root, folders, names in os.walk(folder):
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        for name in sorted(names):
            file = Path(root, name)
            if not name.startswith(".") and file.is_file():
                yield file


def _texts(files: Iterable[Path]) -> Iterable[bytes]:
    """Yield the contents of the text files until the largest amount is reached."""
    left = LARGEST
    for file in files:
        text = _read(file, left)
        if _is_text(text):
            left -= len(text)
            yield text
        if left == 0:
            return


def _read(path: Path, most: int) -> bytes:
    try:
        with path.open("rb") as file:
            return file.read(most)
    except OSError as error:
        raise DataError(f"cannot read {path}: {error.strerror}; give a text that you may read") from None


def _is_text(content: bytes) -> bool:
    return b"\0" not in content[:8192]
