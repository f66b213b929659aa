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
    """Refuse options that were typed and are none of ``used``; see :func:`refuse_idle`."""
    refuse_idle(context, set(context.params) - _parameters(context, used), what)


def refuse_idle(context: typer.Context, idle: Collection[str], what: str) -> None:
    """Refuse options that were typed and would do nothing.

    Args:
        context: of the command.
        idle: names of the parameters that do not count.
        what: what the command was given, in words.

    Raises:
        ArgumentError: there is one; the message names all of them.
    """
    idle = _parameters(context, idle)
    typed = [
        f"--{name.replace('_', '-')}"
        for name in context.params
        if name in idle and getattr(context.get_parameter_source(name), "name", "") == "COMMANDLINE"
    ]
    if typed:
        does, them = ("does", "it") if len(typed) == 1 else ("do", "them")
        raise ArgumentError(f"{', '.join(typed)} {does} nothing for {what}; leave {them} out")


def _parameters(context: typer.Context, names: Collection[str]) -> set[str]:
    """Return the names as a set.

    Raises:
        LookupError: the command has no such parameter, which was renamed then.
    """
    if unknown := set(names) - set(context.params):
        raise LookupError(f"{context.command_path} has no {', '.join(sorted(unknown))}")
    return set(names)


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
