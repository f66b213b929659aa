"""What can be fuzzed: a target runs one input, and its mutations come from a seed alone."""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from fewbits.errors import FewbitsError

LARGEST = 1 << 16  # bytes of an input
NUMBERS = (
    b"0",
    b"-1",
    b"1",
    b"2",
    b"7",
    b"8",
    b"16",
    b"23",
    b"24",
    b"32",
    b"127",
    b"255",
    b"256",
    b"1048576",
)
NUMBERS += (
    b"2147483647",
    b"4294967296",
    b"9223372036854775807",
    b"18446744073709551615",
    b"1e400",
    b"0.5",
    b"nan",
)


@dataclass(frozen=True)
class Target:
    """Something that takes bytes from strangers."""

    seeds: Callable[[], Sequence[bytes]]  # inputs to begin with
    tokens: tuple[bytes, ...]  # words worth inserting
    run: Callable[[bytes, Path], bool]  # (input, empty folder for files) -> whether it was accepted
    mutate: Callable[[random.Random, bytes], bytes] | None = None  # one change that knows the input's form


def not_accepted(error: FewbitsError) -> bool:
    """Return False, for an error that is one short line."""
    text = str(error)
    assert len(text) < 2000
    assert "\n" not in text
    return False


def mutated(target: Target, rng: random.Random, data: bytes, other: bytes) -> bytes:
    """Return ``data`` after one to four changes; ``other`` is an input to borrow from."""
    for _ in range(rng.choice((1, 1, 2, 4))):
        if target.mutate is not None and rng.random() < 0.7:
            data = target.mutate(rng, data)
        else:
            data = _changed(target, rng, data, other)
    return data[:LARGEST]


def _changed(target: Target, rng: random.Random, data: bytes, other: bytes) -> bytes:
    at = rng.randrange(len(data) + 1)
    end = min(len(data), at + rng.choice((0, 1, 1, 2, 4, 8, 30)))
    kind = rng.randrange(6)
    if kind == 0:
        return data[:at] + bytes([rng.randrange(256)]) + data[at + 1 :]
    if kind == 1:
        return data[:at] + data[end:]
    if kind == 2:
        return data[:at] + data[at:end] * rng.choice((2, 2, 3, 50)) + data[end:]
    if kind == 3:
        return data[:at] + rng.choice(target.tokens) + data[end:]
    if kind == 4:
        start = rng.randrange(len(other) + 1)
        return data[:at] + other[start : start + rng.choice((4, 16, 1000))] + data[end:]
    return with_other_number(rng, data)


def with_other_number(rng: random.Random, data: bytes) -> bytes:
    """Return ``data`` with one of its decimal numbers replaced."""
    places = [found.span() for found in re.finditer(rb"-?\d+", data[:LARGEST])]
    if not places:
        return data
    start, stop = rng.choice(places)
    near = str(int(data[start:stop][:20].replace(b"-", b"") or b"0") + rng.choice((-1, 1))).encode()
    return data[:start] + rng.choice((near, *NUMBERS)) + data[stop:]
