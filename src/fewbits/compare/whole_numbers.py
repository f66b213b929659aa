"""Counts and seeds that are given: whole numbers within their bounds; and measures, which are numbers."""

from __future__ import annotations

import math
from numbers import Real

from fewbits.errors import ArgumentError
from fewbits.tensor.inputs import is_count


def check_whole(name: str, number: object, *, least: int = 1, most: float = math.inf) -> None:
    """Raise ArgumentError unless it is a whole number within bounds, and no truth value."""
    if not is_count(number, least) or number > most:  # type: ignore[operator]  # a number, if it comes to that
        bound = "up" if most == math.inf else f"to {most}"
        raise ArgumentError(f"{name}={str(number)!r:.80}; expected a whole number from {least} {bound}")


def check_number(name: str, number: object) -> None:
    """Raise ArgumentError unless it is a real number, and no truth value."""
    if isinstance(number, bool) or not isinstance(number, Real):
        raise ArgumentError(f"{name}={str(number)!r:.80}; expected a number")
