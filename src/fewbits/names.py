"""Which modules of a model a user's patterns mean: those of a shell, on dotted names."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from fnmatch import fnmatchcase

from fewbits.errors import ArgumentError


def listed(given: str | Iterable[str]) -> tuple[str, ...]:
    """Return one pattern or several as a tuple."""
    return (given,) if isinstance(given, str) else tuple(given)


def check_fits(what: str, chosen: Iterable[str], names: Sequence[str]) -> None:
    """Refuse a pattern that fits none of the names, of which the first is the model itself.

    Raises:
        ArgumentError: there is one, in the argument that is called ``what``.
    """
    for pattern in chosen:
        if not any(fnmatchcase(name, pattern) for name in names):
            raise ArgumentError(
                f"{what}={pattern!r} fits no module; the first of them are {', '.join(names[1:6])}"
            )


def within(name: str, chosen: Iterable[str]) -> bool:
    """Whether a pattern fits the module ``name`` or one that it lies within."""
    parts = name.split(".")
    return any(fnmatchcase(".".join(parts[: i + 1]), p) for p in chosen for i in range(len(parts)))
