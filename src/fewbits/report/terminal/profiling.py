"""Profiles of training steps as tables in the terminal."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Group, RenderableType
from rich.text import Text

from fewbits.records import StepProfile
from fewbits.report.columns.profiling import (
    LAYER_COLUMNS,
    OPERATION_COLUMNS,
    about_profile,
    class_columns,
    class_rows,
    layer_rows,
    operation_rows,
    profile_name,
)
from fewbits.report.terminal.sheet import Heading, Sheet, Wrapped

_MOST = 12  # rows of layers and of operations; --json and --report have all


def profile_table(profiles: Sequence[StepProfile]) -> Group:
    """Lay out the time by class, of all profiles side by side, then layers and operations of each."""
    names = " beside ".join(map(profile_name, profiles))
    parts: list[RenderableType] = [Sheet(Heading(names, ""), class_columns(profiles), class_rows(profiles))]
    for profile in profiles:
        name, layers, rows = profile_name(profile), layer_rows(profile), operation_rows(profile)
        parts += [
            Text(),
            Sheet(Heading(f"Layers of {name}", _of(len(layers))), LAYER_COLUMNS, layers[:_MOST]),
            Text(),
            Sheet(Heading(f"Operations of {name}", _of(len(rows))), OPERATION_COLUMNS, rows[:_MOST]),
            Text(),
            *(Wrapped(line) for line in about_profile(profile)),
        ]
    return Group(*parts, Text())


def _of(count: int) -> str:
    return f"the {_MOST} longest of {count}; --report has all" if count > _MOST else ""
