"""Write large files so that a job stopped at any moment leaves the old ones whole and can go on later.

Beside each file to be written lies a hidden one, ``.fewbits-NAME.partial``, of its final size, and beside the
first a journal, ``.fewbits-NAME.journal``: a line that says which job this is, then a line for each finished
step, written when the step's bytes have reached the disk. Files take their names when all are whole.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import hashlib
import json
import os
import re
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any

from fewbits.errors import ArgumentError
from fewbits.files.atomic import sync_folder
from fewbits.files.safetensors_header import Header

_SYNC_SECONDS = 0.5  # between flushes: small steps share one, and no more than this is done twice
_NO_SPACE = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
_READY, _COMPLETE = "ready", "complete"  # all space is reserved; all bytes are written


class Resumable:
    """A set of files being written, each with its header in place; a context manager.

    Attributes:
        done: what :meth:`finish` was told, by step, in this run and in the interrupted ones before it.
    """

    def __init__(self, journal_of: Path, fingerprint: str, files: Mapping[Path, Header]) -> None:
        """Name the files; nothing is touched before the ``with`` block is entered.

        Args:
            journal_of: the path whose name the journal bears; in the folder of the files.
            fingerprint: a text that two runs share only if they would write the same bytes.
            files: the files to write, in one folder, symbolic links resolved.
        """
        self.done: dict[str, Any] = {}
        self._journal_path = _beside(journal_of, "journal")
        self._fingerprint = fingerprint
        self._files = files
        self._pending: list[tuple[str, Any]] = []
        self._synced = time.monotonic()
        self._open: tuple[Path, int] | None = None
        self._journal = -1

    def __enter__(self) -> Resumable:
        self._journal = _locked(self._journal_path)
        try:
            if not self._resume():
                self._start()
        except BaseException:
            self._discard()
            self._close()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            if error is not None and _can_go_on(error):
                with contextlib.suppress(OSError):
                    self._sync()
            if error is not None and not (self.done and _can_go_on(error)):
                self._discard()
        finally:
            self._close()

    def write(self, file: Path, at: int, octets: bytes | bytearray | memoryview) -> None:
        """Put bytes into one of the files."""
        descriptor = self._descriptor(file)
        view = memoryview(octets).cast("B")
        with _naming(file):
            while view:
                written = os.pwrite(descriptor, view, at)
                view, at = view[written:], at + written

    def finish(self, step: str, record: object) -> None:
        """Note that all bytes of a step are written, with what JSON can hold about it."""
        self.done[step] = record
        self._pending.append((step, record))
        if time.monotonic() - self._synced >= _SYNC_SECONDS:
            self._sync()

    def commit(self, headers: Mapping[Path, Header], last: Callable[[], None] = lambda: None) -> None:
        """Write the headers that are known now, give all files their names, call ``last``, forget the job."""
        for file, header in headers.items():
            if _beside(file, "partial").exists():  # else an earlier run came so far
                assert header.size == self._files[file].size
                self.write(file, 0, header.octets)
        self._sync()
        self._note({_COMPLETE: True})
        for file in self._files:
            partial = _beside(file, "partial")
            if partial.exists():
                if file.exists():
                    partial.chmod(file.stat().st_mode & 0o7777)
                partial.replace(file)
        sync_folder(self._journal_path.parent)
        last()
        self._journal_path.unlink()
        sync_folder(self._journal_path.parent)

    def _resume(self) -> bool:
        """Read the journal; return whether it is of this job and all that it needs is there."""
        lines = list(_whole_lines(self._journal))
        first = lines[0] if lines else {}
        if first.get("job") != self._fingerprint:
            for name in first.get("partials", []):
                # The journal may be anybody's: it may name hidden files of ours in its own folder only.
                if isinstance(name, str) and re.fullmatch(r"\.fewbits-[^/\0]*\.partial", name):
                    (self._journal_path.parent / name).unlink(missing_ok=True)
            return False
        complete = lines[-1].get(_COMPLETE) is True
        if not any(line.get(_READY) is True for line in lines) or not all(
            _size(_beside(file, "partial")) == header.size or (complete and _size(file) == header.size)
            for file, header in self._files.items()
        ):
            return False
        self.done = {line["step"]: line["record"] for line in lines if "step" in line}
        return True

    def _start(self) -> None:
        """Reserve the space of all files, so that a disk too small is known before the work."""
        os.ftruncate(self._journal, 0)
        partials = [_beside(file, "partial").name for file in self._files]
        self._note({"job": self._fingerprint, "partials": partials})
        for file, header in self._files.items():
            partial = _beside(file, "partial")
            with _naming(file):
                partial.unlink(missing_ok=True)
                # O_EXCL follows no link that somebody else put there; the mode obeys the umask.
                descriptor = os.open(partial, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o666)
                try:
                    _reserve(descriptor, header.size)
                finally:
                    os.close(descriptor)
            self.write(file, 0, header.octets)
        self._sync()
        self._note({_READY: True})

    def _descriptor(self, file: Path) -> int:
        """Return the open partial file; one is open at a time, as a checkpoint may have many shards."""
        if self._open is None or self._open[0] != file:
            self._sync()
            self._shut()
            self._open = file, os.open(_beside(file, "partial"), os.O_RDWR)
        return self._open[1]

    def _sync(self) -> None:
        """Flush the data, and only then the lines that say so."""
        if self._open is not None:
            with _naming(self._open[0]):
                os.fsync(self._open[1])
        pending, self._pending = self._pending, []
        if pending:
            self._note(*({"step": step, "record": record} for step, record in pending))
        self._synced = time.monotonic()

    def _note(self, *lines: Mapping[str, Any]) -> None:
        text = "".join(json.dumps(line) + "\n" for line in lines).encode()
        with _naming(self._journal_path):
            os.lseek(self._journal, 0, os.SEEK_END)
            while text:
                text = text[os.write(self._journal, text) :]
            os.fsync(self._journal)

    def _discard(self) -> None:
        self._shut()
        for path in [*(_beside(file, "partial") for file in self._files), self._journal_path]:
            with contextlib.suppress(OSError):
                path.unlink()

    def _shut(self) -> None:
        if self._open is not None:
            os.close(self._open[1])
            self._open = None

    def _close(self) -> None:
        self._shut()
        os.close(self._journal)


def _beside(file: Path, what: str) -> Path:
    """Return the hidden path of a partial file or a journal; a name too long for a folder is hashed."""
    name = f".fewbits-{file.name}.{what}"
    if len(os.fsencode(name)) > 255:
        name = f".fewbits-{hashlib.sha256(os.fsencode(file.name)).hexdigest()[:32]}.{what}"
    return file.parent / name


def _locked(journal: Path) -> int:
    """Open the journal for this process alone.

    Raises:
        ArgumentError: another process has it.
    """
    while True:
        descriptor = os.open(journal, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o666)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(descriptor)
            raise ArgumentError(
                f"another run is writing here (it holds {journal}); wait for it, or give another destination"
            ) from None
        except OSError:  # a file system without locks
            return descriptor
        # Between opening and locking, the run that held it may have finished and removed it.
        with contextlib.suppress(FileNotFoundError):
            if os.path.samestat(os.fstat(descriptor), journal.stat()):
                return descriptor
        os.close(descriptor)


def _whole_lines(journal: int) -> Iterator[dict[str, Any]]:
    """Yield the lines that were written whole, and cut off what follows them."""
    with os.fdopen(os.dup(journal), "rb") as file:
        file.seek(0)
        at = 0
        for line in file:
            try:
                told = json.loads(line) if line.endswith(b"\n") else None
            except (ValueError, RecursionError):
                told = None
            if not isinstance(told, dict):
                break
            yield told
            at += len(line)
    os.ftruncate(journal, at)


def _reserve(descriptor: int, size: int) -> None:
    try:
        os.posix_fallocate(descriptor, 0, size)
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.EOPNOTSUPP):
            raise
        os.ftruncate(descriptor, size)  # a file system that cannot reserve


def _size(file: Path) -> int:
    return file.stat().st_size if file.is_file() else -1


def _can_go_on(error: BaseException) -> bool:
    """Whether the same job may succeed later, so that what is done is worth its place on the disk."""
    if isinstance(error, OSError):
        return error.errno not in _NO_SPACE
    return not isinstance(error, Exception)  # interrupts


@contextlib.contextmanager
def _naming(file: Path) -> Iterator[None]:
    """Add the name of the file that is meant to an error of the operating system."""
    try:
        yield
    except OSError as error:
        raise OSError(error.errno, error.strerror, str(file)) from None
