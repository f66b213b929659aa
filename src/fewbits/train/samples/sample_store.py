"""Bytes of samples on the local disk, in a folder that several processes use at once. Needs diskcache."""

from __future__ import annotations

import sqlite3
from pathlib import Path, PurePath
from typing import Any

import diskcache

_FINGERPRINT = "fingerprint"
_PATIENCE = 10.0  # seconds that a process waits for others that write
_ROOM = 1 << 14  # bytes of the index that an entry may add
_RAW, _BINARY = diskcache.core.MODE_RAW, diskcache.core.MODE_BINARY

# What the store raises where the folder is damaged, full, or busy for too long.
ERRORS = (OSError, sqlite3.Error, diskcache.Timeout)


class _Octets(diskcache.Disk):  # type: ignore[misc]  # a class without type information
    """Keeps bytes as they are: nothing that lies in the folder is unpickled, and nothing outside touched."""

    def store(self, value: bytes, read: bool, key: Any = diskcache.UNKNOWN) -> Any:
        if type(value) is not bytes:
            raise TypeError(f"a value of {type(value).__name__}; expected bytes")
        return super().store(value, read, key=key)

    def fetch(self, mode: int, filename: str | None, value: Any, read: bool) -> Any:
        if mode not in (_RAW, _BINARY):
            raise OSError("an entry that is no bytes")
        return super().fetch(mode, self._inside(filename), value, read)

    def get(self, key: Any, raw: bool) -> Any:
        if not raw:
            raise OSError("a key that is no text")
        return super().get(key, raw)

    def remove(self, file_path: str) -> None:
        super().remove(self._inside(file_path))

    def _inside(self, path: str | None) -> str | None:
        if path is not None and (PurePath(path).is_absolute() or ".." in PurePath(path).parts):
            raise OSError(f"an entry outside of the folder, {path!r:.80}")
        return path


class SampleStore:
    """Entries of bytes by number, in a folder.

    Args:
        folder: on a local disk; made where it is not there, and used for one data set.
        fingerprint: of the data set; entries of another one are removed.
        limit: bytes that the folder may take; when it is full, what is there stays.

    Raises:
        OSError: one of :data:`ERRORS`; the folder cannot be used.
    """

    def __init__(self, folder: Path, fingerprint: str, limit: int) -> None:
        self.limit = limit
        self._entries = diskcache.Cache(
            str(folder),
            timeout=_PATIENCE,
            disk=_Octets,
            eviction_policy="none",  # epochs visit all samples: those read longest ago are wanted first
            cull_limit=0,
            size_limit=limit,
            statistics=0,
            tag_index=0,
        )
        with self._entries.transact():
            known = self._entries.get(_FINGERPRINT)
            if known != fingerprint.encode():
                self._entries.clear()
                self._entries.set(_FINGERPRINT, fingerprint.encode())

    def get(self, key: str) -> bytes | None:
        """Return an entry, None where there is none."""
        found = self._entries.get(key)
        return found if isinstance(found, bytes) else None

    def put(self, key: str, octets: bytes) -> bool:
        """Write an entry where there is room; return whether there was."""
        with self._entries.transact():  # of all processes one measures and writes
            if self._entries.volume() + len(octets) + _ROOM > self.limit:
                return False
            return bool(self._entries.set(key, octets))
