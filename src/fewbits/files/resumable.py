"""Write large files such that an interrupted job leaves the old files intact and can be resumed.

Each file is written under a hidden name, ``.fewbits-NAME.partial``, with its final size. Beside the first one
is a journal, ``.fewbits-NAME.journal``: a line that identifies the job, then a line for each finished step,
written after the step's bytes have reached the disk. Files are renamed when all are complete.
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
from fewbits.files.atomic import naming, sync_folder
from fewbits.files.safetensors_header import Header

_SYNC_SECONDS = 0.5  # between flushes; an interruption loses at most this much work
_NO_SPACE = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
_READY, _COMPLETE = "ready", "complete"  # journal states: all space is reserved; all bytes are written


class Resumable:
    """A set of files being written, each with its header in place; a context manager.

    Attributes:
        done: the records given to :meth:`finish`, by step, in this run and in interrupted ones before it.
    """

    def __init__(self, journal_of: Path, fingerprint: str, files: Mapping[Path, Header]) -> None:
        """Set the files; nothing is written before the ``with`` block is entered.

        Args:
            journal_of: the path after which the journal is named, in the folder of the files.
            fingerprint: identifies the job; equal only for runs that would write the same bytes.
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
        """Write bytes at an offset of one of the files."""
        descriptor = self._descriptor(file)
        view = memoryview(octets).cast("B")
        with naming(file):
            while view:
                written = os.pwrite(descriptor, view, at)
                view, at = view[written:], at + written

    def finish(self, step: str, record: object) -> None:
        """Record that all bytes of a step are written; ``record`` is any JSON value."""
        self.done[step] = record
        self._pending.append((step, record))
        if time.monotonic() - self._synced >= _SYNC_SECONDS:
            self._sync()

    def commit(self, headers: Mapping[Path, Header], last: Callable[[], None] = lambda: None) -> None:
        """Write the headers that changed, rename all files, call ``last``, and remove the journal."""
        for file, header in headers.items():
            assert header.size == self._files[file].size
            is_partial = _beside(file, "partial").exists()  # else an earlier run renamed it
            if is_partial and header.octets != self._files[file].octets:
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
        """Read the journal; return whether it belongs to this job and all its files exist."""
        lines = list(_complete_lines(self._journal))
        first = lines[0] if lines else {}
        if first.get("job") != self._fingerprint:
            for name in first.get("partials", []):
                # The journal is untrusted input: it may only name our hidden files in its own folder.
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
        """Reserve the space of all files, so that a full disk is detected before the work."""
        os.ftruncate(self._journal, 0)
        partials = [_beside(file, "partial").name for file in self._files]
        self._note({"job": self._fingerprint, "partials": partials})
        for file, header in self._files.items():
            partial = _beside(file, "partial")
            with naming(file):
                partial.unlink(missing_ok=True)
                # O_EXCL follows no link that somebody else created; the permissions follow the umask.
                descriptor = os.open(partial, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o666)
                try:
                    _reserve(descriptor, header.size)
                finally:
                    os.close(descriptor)
            self.write(file, 0, header.octets)
        self._sync()
        self._note({_READY: True})

    def _descriptor(self, file: Path) -> int:
        """Return the open partial file; only one is open at a time, as there may be many shards."""
        if self._open is None or self._open[0] != file:
            self._sync()
            self._shut()
            self._open = file, os.open(_beside(file, "partial"), os.O_RDWR)
        return self._open[1]

    def _sync(self) -> None:
        """Flush the data, and only then the journal lines about them."""
        if self._open is not None:
            with naming(self._open[0]):
                os.fsync(self._open[1])
        pending, self._pending = self._pending, []
        if pending:
            self._note(*({"step": step, "record": record} for step, record in pending))
        self._synced = time.monotonic()

    def _note(self, *lines: Mapping[str, Any]) -> None:
        text = "".join(json.dumps(line) + "\n" for line in lines).encode()
        with naming(self._journal_path):
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
    """Return the hidden path of a partial file or a journal; a name that is too long is hashed."""
    name = f".fewbits-{file.name}.{what}"
    if len(os.fsencode(name)) > 255:
        name = f".fewbits-{hashlib.sha256(os.fsencode(file.name)).hexdigest()[:32]}.{what}"
    return file.parent / name


def _locked(journal: Path) -> int:
    """Open the journal with an exclusive lock.

    Raises:
        ArgumentError: another process holds the lock.
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
        # Between opening and locking, the run that held the lock may have finished and removed the file.
        with contextlib.suppress(FileNotFoundError):
            if os.path.samestat(os.fstat(descriptor), journal.stat()):
                return descriptor
        os.close(descriptor)


def _complete_lines(journal: int) -> Iterator[dict[str, Any]]:
    """Yield the complete lines of a journal, and truncate it after them."""
    with os.fdopen(os.dup(journal), "rb") as file:
        file.seek(0)
        at = 0
        for line in file:
            try:
                record = json.loads(line) if line.endswith(b"\n") else None
            except (ValueError, RecursionError):
                record = None
            if not isinstance(record, dict):
                break
            yield record
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
    """Return whether the same job may succeed later, so that its partial files should be kept."""
    if isinstance(error, OSError):
        return error.errno not in _NO_SPACE
    return not isinstance(error, Exception)  # interrupts
