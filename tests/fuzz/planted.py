"""Targets with one deliberate mistake each, for the tests of the fuzzer itself."""

import os
import time
from pathlib import Path

from tests.fuzz.target import Target


def _seeds() -> list[bytes]:
    return [b"calm", b"calm as well"]


def _wrong_error(data: bytes, _: Path) -> bool:
    if b"7" in data:
        raise KeyError("seven")
    return True


def _hang(data: bytes, _: Path) -> bool:
    while b"7" in data:
        pass
    return True


def _crash(data: bytes, _: Path) -> bool:
    if b"7" in data:
        os.abort()
    return True


def _memory(data: bytes, _: Path) -> bool:
    kept = bytearray(b"1") * (1 << 28) if b"7" in data else b""  # every page of it written
    time.sleep(1 if kept else 0)
    return True


WRONG_ERROR, HANG, CRASH, MEMORY = (
    Target(_seeds, (b"7", b"x"), run) for run in (_wrong_error, _hang, _crash, _memory)
)
