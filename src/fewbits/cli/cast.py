"""``fewbits cast``: a checkpoint into narrow formats, or back."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from fewbits.cli.aliases import Formats
from fewbits.cli.arguments import provenance, refuse_unused, split_list
from fewbits.cli.kinds import CHECKPOINT, JSON, Reads, Writes
from fewbits.cli.mapping import read_map
from fewbits.cli.paths import tables_console, write_report
from fewbits.cli.progress import Interrupted, progress_bar
from fewbits.errors import ArgumentError
from fewbits.formats import parse


def cast(
    context: typer.Context,
    source: Annotated[
        Path,
        Reads(),
        typer.Argument(help="A .safetensors file, or a folder of them.", show_default=False),
    ],
    destination: Annotated[
        Path,
        Writes(CHECKPOINT),
        typer.Argument(
            help="A .safetensors file for a file; for a folder a folder, in which files keep their names. "
            "Only tensors and their index are written: copy config.json and the like yourself.",
            show_default=False,
        ),
    ],
    format: Annotated[
        str | None,
        Formats(),
        typer.Option(help="A format's name, or a text in the grammar (see `fewbits formats`)."),
    ] = None,
    map: Annotated[
        list[str] | None,
        Reads(),
        Formats(),
        typer.Option(
            help="PATTERN=FORMAT for the tensors whose names match, as in 'layers.0.*=mx9', or the path of "
            "what `fewbits compare --json` wrote of this checkpoint; may be given several times, and the "
            "first that matches decides, before --format."
        ),
    ] = None,
    keep: Annotated[
        str | None,
        typer.Option(help="Comma-separated patterns of names that stay as they are: 'lm_head*,*embed*'."),
    ] = None,
    scale_rule: Annotated[
        str | None,
        typer.Option(
            help="How power-of-two scales are chosen: floor, ceil, rceil, even, ... Default: that of a "
            "proposal in --map, else floor.",
            show_default=False,
        ),
    ] = None,
    sparsity: Annotated[
        str | None,
        typer.Option(
            help="A pattern such as 2:4: of each group along the last axis of a matrix, keep the values of "
            "largest magnitude. Matrices whose sizes do not fit, and what is no matrix, stay dense."
        ),
    ] = None,
    back: Annotated[
        bool, typer.Option("--back", help="Restore ordinary tensors, in the dtypes they had.")
    ] = False,
    json: Annotated[
        Path | None, Writes(JSON), typer.Option(help="Write the table, and every tensor, as JSON.")
    ] = None,
) -> None:
    """Store a checkpoint in narrow formats, as packed bits in .safetensors files.

    Floating-point tensors with two axes or more are narrowed, in blocks along the last axis; a convolution's
    kernel along all axes but the first. All other tensors are kept as they are. The checkpoint is read
    piece by piece, so it may be larger than memory. The destination appears whole, when all is done; the
    same command goes on where an interrupted one stopped.

    Example: fewbits cast model.safetensors narrow.safetensors --format mxfp4 --keep 'lm_head*'

    Back again: fewbits cast narrow.safetensors model.safetensors --back
    """
    if back:
        refuse_unused(
            context, {"source", "destination", "back", "json"}, "--back, which does what the file says"
        )
    if not back and format is None and not map:
        raise ArgumentError("no format was given; add --format, as in --format mxfp4, or --map")
    rules, rule = read_map(map or [], scale_rule)
    kept = split_list(keep) if keep is not None else []
    chosen = None if format is None else parse(format)
    report = _done(
        source,
        destination,
        back,
        format=chosen,
        mapped=rules,
        keep=kept,
        scale_rule=rule,
        sparsity=sparsity,
    )

    from fewbits.report import cast_json, cast_table

    tables_console(json).print(cast_table(report))
    for tensor in report.tensors if sparsity is not None else ():
        if tensor.format is not None and tensor.sparsity is None:
            shape = " x ".join(str(n) for n in tensor.shape)
            typer.echo(f"left dense: {tensor.tensor}, {shape}, does not fit {sparsity}", err=True)
    typer.echo(f"wrote {destination}", err=True)
    write_report(json, lambda: cast_json(report, provenance()))


def _done(source: Path, destination: Path, back: bool, **choices: Any) -> Any:
    from fewbits.files import cast as narrow
    from fewbits.files import restore

    what = "restoring tensors" if back else "casting tensors"
    try:
        with progress_bar() as progress:

            def told(done: float, total: float, _: str) -> None:
                progress(what, done, total)

            if back:
                return restore(source, destination, progress=told)
            return narrow(source, destination, progress=told, **choices)
    except KeyboardInterrupt:
        raise Interrupted(
            f"interrupted; {destination} is as it was, and the same command goes on from here"
        ) from None
