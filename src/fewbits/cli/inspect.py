"""``fewbits inspect``: what a checkpoint holds, and whether it is sound."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from fewbits.cli.arguments import JsonOption, provenance
from fewbits.cli.kinds import Reads
from fewbits.cli.paths import tables_console, write_report
from fewbits.cli.progress import progress_bar


def inspect(
    path: Annotated[
        Path,
        Reads(),
        typer.Argument(
            help="A .safetensors file, or a folder of them, narrow or not; a .gguf file or an .onnx model.",
            show_default=False,
        ),
    ],
    json: JsonOption = None,
) -> None:
    """List the tensors of a checkpoint: shape, dtype or narrow format, bytes, bits per value.

    Narrow tensors are checked: every part is there in its shape, spare bits are zero and codes are valid.
    The exit code is 1, with a line for each problem, where something is wrong.

    Example: fewbits inspect narrow.safetensors
    """
    from fewbits.files import inspect as look
    from fewbits.report import inspect_json, inspect_table
    from fewbits.report.quantities import visible

    with progress_bar() as progress:
        report = look(path, progress=progress)
    tables_console(json).print(inspect_table(report))
    write_report(json, lambda: inspect_json(report, provenance()))
    for problem in report.problems:
        sys.stderr.write(f"fewbits: {visible(problem)}\n")
    if report.problems:
        raise typer.Exit(1)
