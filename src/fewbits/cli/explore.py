"""``fewbits explore``: a design space of formats and its Pareto front, or the best format within a budget."""

from __future__ import annotations

from typing import Annotated

import typer

from fewbits.cli.arguments import (
    BudgetOption,
    ExcludeOption,
    FormatsOption,
    IncludeOption,
    JsonOption,
    ReportOption,
    ScaleRuleOption,
    provenance,
    read_formats,
    read_list,
)
from fewbits.cli.kinds import Reads
from fewbits.cli.paths import tables_console, write_report
from fewbits.cli.progress import progress_bar


def explore(
    data: Annotated[
        str,
        Reads(),
        typer.Option(
            "--data",
            help="variance (normal, each vector with its own variance), gaussian, laplace or lognormal; or a"
            " .npy array, a .safetensors file, an index or a folder of them: weights, or recorded"
            " activations.",
        ),
    ] = "variance",
    vectors: Annotated[
        int,
        typer.Option(min=1, max=1_000_000, help="Of 256 values each; of a file at most as many as it holds."),
    ] = 10_000,
    seed: Annotated[int, typer.Option(min=0, help="Of the vectors that are drawn.")] = 0,
    formats: FormatsOption = None,
    budget: BudgetOption = None,
    scale_rule: ScaleRuleOption = None,
    include: IncludeOption = None,
    exclude: ExcludeOption = None,
    report: ReportOption = None,
    json: JsonOption = None,
) -> None:
    """Measure a design space of more than three thousand formats on one kind of data.

    Every format rounds the same vectors. The tables say which is best within how many bits per value, how far
    MX9, MX6, MX4, MXFP4, NVFP4 and --formats of your own lie below the Pareto front, and what the front of
    Block Data Representations owes to each of their parameters. The cost in hardware is a proxy that counts
    bits. With --budget it instead finds the best format for the data, tables of values fitted to it among
    them: one half of the vectors chooses, the other half decides.

    Example: fewbits explore --vectors 2000 --report explore.html

    A format of your own: fewbits explore --formats "block(element=posit6_2,scale=e8m0,size=24)"

    For your data: fewbits explore --data model.safetensors --include "*mlp*" --budget 4.5
    """
    own = [] if formats is None else read_formats(formats, [])
    from fewbits.compare import best_format, explore_formats
    from fewbits.report import (
        choice_json,
        choice_page,
        choice_table,
        explore_json,
        explore_page,
        explore_table,
    )

    origin = provenance((seed,))
    rule, taken, left = scale_rule or "floor", read_list(include), read_list(exclude)
    winner = ""
    with progress_bar() as progress:
        if budget is None:
            space = explore_formats(
                data, own, vectors=vectors, seed=seed, scale_rule=rule, include=taken, exclude=left,
                progress=progress,
            )  # fmt: skip
            table = explore_table(space)
            page, text = lambda: explore_page(space, origin), lambda: explore_json(space, origin)
        else:
            choice = best_format(
                budget, data, own, vectors=vectors, seed=seed, scale_rule=rule, include=taken, exclude=left,
                progress=progress,
            )  # fmt: skip
            table, winner = choice_table(choice), choice.winner
            page, text = lambda: choice_page(choice, origin), lambda: choice_json(choice, origin)
    console = tables_console(report, json)
    console.print(table)
    if winner:  # without breaks, so that it can be copied
        console.print(winner, markup=False, highlight=False, soft_wrap=True)
    write_report(report, page)
    write_report(json, text)
