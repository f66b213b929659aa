"""The catalogue of recipes, and one recipe, as text and JSON."""

from __future__ import annotations

import json
from collections.abc import Sequence

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

RecipeRow = tuple[str, str, str]
"""(name, what is narrow in a few words, source)."""


def recipes_table(rows: Sequence[RecipeRow]) -> Table:
    """Lay out the catalogue: name, what it does in a few words, source."""
    table = Table(title="Recipes", title_justify="left")
    for column in ("recipe", "what is narrow", "source"):
        table.add_column(column, overflow="fold")
    for row in rows:
        table.add_row(*(Text(cell) for cell in row))
    return table


def recipe_table(facts: Sequence[tuple[str, str]], fields: Sequence[tuple[str, str]]) -> RenderableType:
    """Lay out one recipe: its facts, then each field that differs from training in FP32, with its value."""
    table = Table(title="What differs from FP32", title_justify="left")
    for column in ("field", "value"):
        table.add_column(column, overflow="fold")
    for field in fields:
        table.add_row(*(Text(cell) for cell in field))
    lines = [Text.assemble((f"{name:<18} ", "bold"), text) for name, text in facts]
    return Group(*lines, table) if fields else Group(*lines)


def recipes_json(rows: Sequence[RecipeRow]) -> str:
    """Return the catalogue as JSON, one object per recipe."""
    keys = ("name", "narrow", "source")
    return json.dumps([dict(zip(keys, row, strict=True)) for row in rows], indent=2) + "\n"


def recipe_json(facts: Sequence[tuple[str, str]], fields: Sequence[tuple[str, str]]) -> str:
    """Return one recipe's facts and fields as JSON."""
    return json.dumps({"facts": dict(facts), "fields": dict(fields)}, indent=2) + "\n"
