"""Translates names of Python arguments in error messages to options: exclude='q*' becomes --exclude 'q*'."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from functools import wraps
from typing import ParamSpec, TypeVar, get_type_hints

import typer

from fewbits.errors import FewbitsError

P = ParamSpec("P")
R = TypeVar("R")

# Arguments of Python that bear another name on the command line, where a table's column says the unit.
_RENAMED = {"min_qsnr_db": "min_qsnr", "pins": "pin"}


def parameter_flags(command: Callable[..., object]) -> dict[str, str]:
    """Return what the user types for each parameter of a command: ``--scale-rule``, or ``SOURCE``."""
    argument = type(typer.Argument())
    hints = get_type_hints(command, include_extras=True)
    marks = {name: getattr(hint, "__metadata__", ()) for name, hint in hints.items()}
    positional = {name for name, among in marks.items() if any(isinstance(m, argument) for m in among)}
    return {
        name: name.upper() if name in positional else f"--{name.rstrip('_').replace('_', '-')}"
        for name in hints
    }


def with_flags(command: Callable[P, R]) -> Callable[P, R]:
    """Return the command with the arguments that its errors name spelled as on the command line.

    An argument is named as ``name='value'``, or between backquotes. Nothing else is changed: texts that the
    user typed may hold signs of equality, as formats do.
    """
    flags = parameter_flags(command)
    flags |= {name: flags[flag] for name, flag in _RENAMED.items() if flag in flags}

    @wraps(command)
    def translated(*args: P.args, **kwargs: P.kwargs) -> R:
        try:
            return command(*args, **kwargs)
        except FewbitsError as error:
            raise type(error)(spelled_as_flags(str(error), flags)) from None

    return translated


def spelled_as_flags(text: str, flags: Mapping[str, str]) -> str:
    """Write the arguments that a text names as flags.

    >>> spelled_as_flags("exclude='q*' fits nothing; see `exclude`, not float(e=4)", {"exclude": "--exclude"})
    "--exclude 'q*' fits nothing; see --exclude, not float(e=4)"
    """
    names = "|".join(map(re.escape, flags))
    return re.sub(
        rf"(?<![\w.(,])({names})=(?=['\"])|`({names})`",
        lambda found: f"{flags[found[1]]} " if found[1] else flags[found[2]],
        text,
    )
