"""Reading what the user typed: lists of formats, tasks, and places to write to."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Collection, Sequence
from importlib.metadata import PackageNotFoundError, version

import typer

from fewbits.errors import ArgumentError
from fewbits.formats import Format, parse
from fewbits.records import Provenance


def split_list(text: str) -> list[str]:
    """Split at commas that are outside parentheses.

    >>> split_list("mxfp4, float(e=3,m=2)")
    ['mxfp4', 'float(e=3,m=2)']
    """
    items, depth, start = [], 0, 0
    for at, mark in enumerate(text):
        depth += (mark == "(") - (mark == ")")
        if mark == "," and depth <= 0:
            items.append(text[start:at].strip())
            start = at + 1
    return [item for item in [*items, text[start:].strip()] if item]


def read_formats(text: str | None, default: Sequence[str]) -> list[Format]:
    """Return the formats of a comma-separated list, each once, or the default ones."""
    names = list(default) if text is None else split_list(text)
    if not names:
        raise ArgumentError("--formats is empty; give names as in mxfp4,mx6 (see `fewbits formats`)")
    return list(dict.fromkeys(parse(name) for name in names))


def refuse_unused(context: typer.Context, used: Collection[str], what: str) -> None:
    """Refuse options that were typed and would do nothing.

    Args:
        context: of the command.
        used: names of the parameters that count.
        what: what the command was given, in words.

    Raises:
        ArgumentError: there is one; the message names all of them.
    """
    typed = [
        name
        for name in context.params
        if getattr(context.get_parameter_source(name), "name", "") == "COMMANDLINE"
    ]
    idle = [f"--{name.replace('_', '-')}" for name in typed if name not in used]
    if idle:
        does = "does" if len(idle) == 1 else "do"
        raise ArgumentError(
            f"{', '.join(idle)} {does} nothing for {what}; leave {'it' if len(idle) == 1 else 'them'} out"
        )


def provenance(seeds: Sequence[int] = ()) -> Provenance:
    """Return the command line as typed and the versions that ran it."""
    packages = ("fewbits", "torch", "numpy")
    command = shlex.join(["fewbits", *sys.argv[1:]])
    versions = (("python", sys.version.split()[0]), *((p, _version(p)) for p in packages))
    return Provenance(command, versions, tuple(seeds))


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "not installed"
