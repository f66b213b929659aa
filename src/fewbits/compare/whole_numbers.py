"""Counts and seeds that are given: whole numbers within their bounds."""

from __future__ import annotations

import math
from numbers import Integral

from fewbits.errors import ArgumentError


def check_whole(name: str, number: object, *, least: int = 1, most: float = math.inf) -> None:
    """Raise ArgumentError unless it is a whole number within bounds, and no truth value."""
    if isinstance(number, bool) or not isinstance(number, Integral) or not least <= int(number) <= most:
        bound = "up" if most == math.inf else f"to {most}"
        raise ArgumentError(f"{name}={str(number)!r:.80}; expected a whole number from {least} {bound}")
