"""Checksums of stored tensors, CRC-32: a changed byte is told from what was written."""

from __future__ import annotations

from collections.abc import Callable
from zlib import crc32

from fewbits.files.checkpoint import StoredTensor, raw_chunks

UNKNOWN = "00000000"  # stands in a header until the bytes are written


def digits(checksum: int) -> str:
    """Return a checksum as the metadata has it: eight hexadecimal digits."""
    return f"{checksum:08x}"


class Checksums:
    """The checksums of tensors that are written piece after piece."""

    def __init__(self) -> None:
        self._states: dict[str, tuple[int, int]] = {}  # by name: bytes so far, and their checksum

    def add(self, name: str, at: int, octets: bytes | bytearray | memoryview) -> None:
        """Take in the bytes of a tensor from ``at`` on.

        They come in order. A scale that many pieces share is written with each of them, and counts once.
        """
        length, state = self._states.get(name, (0, 0))
        if at == length:
            self._states[name] = length + memoryview(octets).nbytes, crc32(octets, state)
        else:
            assert at + memoryview(octets).nbytes <= length

    def of(self, name: str) -> str:
        """Return the checksum of a tensor; without a byte, that of none."""
        return digits(self._states.get(name, (0, 0))[1])


def problem(tensor: StoredTensor, advance: Callable[[int], None] = lambda _: None) -> str:
    """Read a tensor, and say what is wrong where its bytes are not those of its checksum; else nothing.

    Args:
        tensor: from :func:`fewbits.files.contents.read_contents`; without a checksum nothing is read.
        advance: called with the number of bytes of each piece that was read.

    Raises:
        DataError: the file was cut since it was listed.
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
    """Say that a tensor's bytes have another checksum than the file says; nothing where they have that."""
    if tensor.crc32 in (None, digits(checksum)):
        return ""
    return (
        f"tensor {tensor.name!r:.200} was changed since it was written: its bytes have the checksum "
        f"{digits(checksum)}, and the file says {tensor.crc32}; fetch or write it again"
    )
