"""``fewbits recipes``: the catalogue of recipes, or everything about one."""

from __future__ import annotations

from typing import Annotated

import typer

from fewbits.cli.aliases import Formats
from fewbits.cli.arguments import JsonOption
from fewbits.cli.paths import tables_console, write_report


def recipes(
    name: Annotated[
        str | None,
        Formats(),
        typer.Argument(
            help="A recipe's name, or a name and changes, as in mxfp6:gradient=mxfp8_e5m2/rceil.",
            show_default=False,
        ),
    ] = None,
    json: JsonOption = None,
) -> None:
    """List the recipes for training, or show one: what is narrow, what repays the rounding, and its source.

    Example: fewbits recipes fp16-master

    A recipe of your own: fewbits recipes mx:weight=mxfp6_e3m2,activation=mxfp6_e3m2,gradient=mxfp6_e3m2
    """
    from fewbits.recipes import RECIPES, recipe
    from fewbits.recipes.summary import differences, in_words, source_of
    from fewbits.report import recipe_json, recipe_table, recipes_json, recipes_table

    console = tables_console(json)
    if name is None:
        rows = [(r.name, in_words(r), r.paper) for r in RECIPES.values()]
        console.print(recipes_table(rows))
        write_report(json, lambda: recipes_json(rows))
        return
    chosen = recipe(name)
    facts = [("recipe", chosen.name), ("what is narrow", in_words(chosen)), ("source", source_of(chosen))]
    fields = differences(chosen)
    console.print(recipe_table(facts, fields))
    write_report(json, lambda: recipe_json(facts, fields))
