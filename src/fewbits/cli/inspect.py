"""``fewbits inspect``: what a checkpoint holds, and whether it is sound."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from fewbits.cli.arguments import check_writable, provenance
from fewbits.cli.progress import progress_bar
from fewbits.files.atomic import write_text


def inspect(
    path: Annotated[
        Path,
        typer.Argument(help="A .safetensors file, or a folder of them; narrow or not.", show_default=False),
    ],
    json: Annotated[Path | None, typer.Option(help="Also write what is printed as JSON.")] = None,
) -> None:
    """List the tensors of a checkpoint: shape, dtype or narrow format, bytes, bits per value.

    Narrow tensors are checked: every part is there in its shape, spare bits are zero and codes are valid.
    The exit code is 1, with a line for each problem, where something is wrong.

    Example: fewbits inspect narrow.safetensors
    """
    check_writable(json)
    from fewbits.files import inspect as look
    from fewbits.report import inspect_json, inspect_table
    from fewbits.report.quantities import visible

    with progress_bar() as progress:
        report = look(path, progress=lambda done, total, _: progress("checking tensors", done, total))
    Console().print(inspect_table(report))
    if json is not None:
        write_text(json, inspect_json(report, provenance()))
        typer.echo(f"wrote {json}", err=True)
    for problem in report.problems:
        sys.stderr.write(f"fewbits: {visible(problem)}\n")
    if report.problems:
        raise typer.Exit(1)
