"""The standard streams of the command: neither a reader that stops nor a missing character ends the work."""

from __future__ import annotations

import sys
from io import BufferedWriter, FileIO, TextIOWrapper
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from typing_extensions import Buffer


class _Outliving(FileIO):
    """A file whose reader may stop, as ``head`` does: what it did not read is dropped."""

    def write(self, data: Buffer, /) -> int:
        """Write bytes, and say that all were taken where nobody reads any more."""
        try:
            return super().write(data)
        except BrokenPipeError:
            return memoryview(data).nbytes


def steady_streams() -> None:
    """Have the standard output and the error stream of this process outlive their readers.

    Tables are printed before reports are written, which would be lost with them. A name that the encoding
    lacks is shown by escapes. Streams that somebody put in the place of the process's own stay.
    """
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if isinstance(stream, TextIOWrapper) and stream is getattr(sys, f"__{name}__"):
            stream.flush()
            file = BufferedWriter(_Outliving(stream.fileno(), "w", closefd=False))
            steady = TextIOWrapper(file, stream.encoding, "backslashreplace", line_buffering=True)
            setattr(sys, name, steady)
