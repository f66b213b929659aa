"""CRC-32 checksums of stored tensors, which detect changed bytes."""

from __future__ import annotations

from collections.abc import Callable
from zlib import crc32

from fewbits.files.checkpoint import StoredTensor, raw_chunks

UNKNOWN = "00000000"  # placeholder in a header until the bytes are written


def digits(checksum: int) -> str:
    """Return a checksum as in the metadata: eight hexadecimal digits."""
    return f"{checksum:08x}"


class Checksums:
    """Checksums of tensors that are written in pieces."""

    def __init__(self) -> None:
        self._states: dict[str, tuple[int, int]] = {}  # by name: bytes so far, and their checksum

    def add(self, name: str, at: int, octets: bytes | bytearray | memoryview) -> None:
        """Add the bytes of a tensor that start at ``at``.

        Bytes must come in order. A scale that several pieces share is written with each of them but counts
        once.
        """
        length, state = self._states.get(name, (0, 0))
        if at == length:
            self._states[name] = length + memoryview(octets).nbytes, crc32(octets, state)
        else:
            assert at + memoryview(octets).nbytes <= length

    def of(self, name: str) -> str:
        """Return the checksum of a tensor; that of no bytes if none were added."""
        return digits(self._states.get(name, (0, 0))[1])


def problem(tensor: StoredTensor, advance: Callable[[int], None] = lambda _: None) -> str:
    """Read a tensor and compare its checksum; return a sentence about the difference, or "".

    Args:
        tensor: from :func:`fewbits.files.contents.read_contents`; not read if it has no checksum.
        advance: called with the number of bytes of each piece that was read.

    Raises:
        DataError: the file became shorter after it was listed.
    """
    if tensor.crc32 is None:
        advance(tensor.stored_bytes)
        return ""
    state = 0
    for raw in raw_chunks(tensor):
        state = crc32(raw, state)
        advance(len(raw))
    return difference(tensor, state)


def difference(tensor: StoredTensor, checksum: int) -> str:
    """Return a sentence if ``checksum`` is not the one recorded in the file, else ""."""
    if tensor.crc32 in (None, digits(checksum)):
        return ""
    return (
        f"tensor {tensor.name!r:.200} was changed since it was written: its bytes have the checksum "
        f"{digits(checksum)}, and the file says {tensor.crc32}; fetch or write it again"
    )
