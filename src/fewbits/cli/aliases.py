"""The user's own names for formats, in every parameter that takes a format."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from contextvars import ContextVar
from dataclasses import dataclass
from functools import wraps
from typing import ParamSpec, TypeVar, get_type_hints

from fewbits.errors import ArgumentError, FormatError
from fewbits.formats import CATALOGUE, parse, split
from fewbits.formats.grammar import KINDS

P = ParamSpec("P")
R = TypeVar("R")
_KNOWN: ContextVar[Mapping[str, str] | None] = ContextVar("aliases", default=None)


@dataclass(frozen=True)
class Formats:
    """Marks a parameter whose text names formats, perhaps among other things."""


def define(given: str | None, source: str = "--alias") -> None:
    """Define aliases from a list of NAME=FORMAT for this command; a later one may use an earlier one.

    Args:
        given: the list; None is an empty one.
        source: the option or the variable that has it, which errors name.

    Raises:
        ArgumentError: an item is not NAME=FORMAT, or the name is already a format, or that of another item.
        FormatError: no such format.
    """
    known: dict[str, str] = {}
    for text in split(given or ""):
        if not text.strip():
            continue
        name, sign, fmt = (part.strip() for part in text.partition("="))
        if not sign or not re.fullmatch(r"[A-Za-z_]\w*", name, re.ASCII):
            raise ArgumentError(
                f"{source} {text!r:.200} is not NAME=FORMAT; write it as in nf=lookup(-1,0,1)"
            )
        if name in CATALOGUE or name in KINDS:
            raise ArgumentError(f"{source} {name}: that is a format already; choose another name")
        try:
            meant = parse(_expanded(fmt, known)).name
        except FormatError as error:
            raise FormatError(f"{source} {name}: {error}") from error
        if name in known:
            raise ArgumentError(f"{source} {name} is {known[name]} and {meant}; give each a name of its own")
        known[name] = meant
    _KNOWN.set(known)


def with_aliases(command: Callable[P, R]) -> Callable[P, R]:
    """Return the command with the aliases in its marked parameters written out."""
    hints = get_type_hints(command, include_extras=True)
    marked = [
        name
        for name, hint in hints.items()
        if any(isinstance(mark, Formats) for mark in getattr(hint, "__metadata__", ()))
    ]

    @wraps(command)
    def expanded(*args: P.args, **given: P.kwargs) -> R:
        known = _KNOWN.get() or {}
        for name in marked if known else ():
            value = given[name]
            if isinstance(value, str):
                given[name] = _expanded(value, known)
        return command(*args, **given)

    return expanded


def _expanded(text: str, known: Mapping[str, str]) -> str:
    """Write out the aliases in a text: whole names, but no patterns of tensors and no keys before =."""
    return re.sub(r"(?<![\w.*?\]])[A-Za-z_]\w*(?![\w.*?\[(=])", lambda m: known.get(m[0], m[0]), text)
