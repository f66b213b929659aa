"""``fewbits prune``: a checkpoint, or a built-in model, to structured sparsity."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from fewbits.cli.aliases import Formats
from fewbits.cli.arguments import provenance, refuse_unused, split_list
from fewbits.cli.kinds import JSON, PAGE, TENSORS, Reads, Writes
from fewbits.cli.paths import tables_console, write_report
from fewbits.cli.progress import Interrupted, Report, progress_bar
from fewbits.errors import ArgumentError
from fewbits.names import check_fits

if TYPE_CHECKING:
    from fewbits.records import PrunedModel


_USED = {"source", "out", "pattern", "keep", "format", "report", "json"}  # of a checkpoint


def prune(
    context: typer.Context,
    source: Annotated[
        Path | None,
        Reads(),
        typer.Argument(
            help="A .safetensors file, or a folder of them; with --task, the weights of its dense model. "
            "Default: with --task, a model that is trained first.",
            show_default=False,
        ),
    ] = None,
    out: Annotated[
        Path | None,
        Writes(TENSORS),
        typer.Option(help="Write the pruned model as a .safetensors file: dense, with zeros."),
    ] = None,
    pattern: Annotated[
        str, typer.Option(help="N:M, at most N of every M neighbours: 2:4, 1:2, 4:8.")
    ] = "2:4",
    keep: Annotated[
        str | None,
        typer.Option(help="Comma-separated patterns of names that stay dense: 'lm_head*,*embed*'."),
    ] = None,
    task: Annotated[
        str | None,
        Reads(below=True),
        typer.Option(help="bytes, digits, faint, mnist10k, or the path of a text: train again on it."),
    ] = None,
    model: Annotated[str, typer.Option(help="Of the task: small (seconds on two cores) or base.")] = "small",
    recipe: Annotated[
        list[str] | None,
        Formats(),
        typer.Option(
            help="Of the retraining; may be given several times; none: no retraining. Default: fp32."
        ),
    ] = None,
    schedule: Annotated[
        str, typer.Option(help="When masks are made in retraining: frozen, recomputed, gradual or sr-ste.")
    ] = "frozen",
    steps: Annotated[int, typer.Option(min=0, help="Of each training; 0: as many as the task says.")] = 0,
    seeds: Annotated[int, typer.Option(min=1, help="How many models to train, prune and train again.")] = 1,
    control: Annotated[
        bool, typer.Option("--control", help="Train the dense models again too: what retraining alone does.")
    ] = False,
    format: Annotated[
        str,
        Formats(),
        typer.Option(help="Of values, in which sizes and products are measured: bf16, int8_channel, ..."),
    ] = "bf16",
    report: Annotated[
        Path | None, Writes(PAGE), typer.Option(help="Write the tables as one HTML page.", show_default=False)
    ] = None,
    json: Annotated[Path | None, Writes(JSON), typer.Option(help="Write the tables as JSON.")] = None,
) -> None:
    """Prune a model to N:M, at most N of every M neighbouring weights, and train it again.

    A checkpoint is pruned by magnitude. A built-in model is trained, pruned, and trained once more with a
    frozen mask, as the published recipe has it; the table says how good it is at each stage.

    Example: fewbits prune --task digits --steps 100 --out pruned.safetensors

    A checkpoint of your own: fewbits prune model.safetensors --keep '*embed*' --out pruned.safetensors
    """
    if report is not None:
        from fewbits.report import check_plots

        check_plots()  # refuses now rather than after the work
    kept = split_list(keep) if keep is not None else []
    if task is not None:
        recipes = [] if recipe == ["none"] else recipe or ["fp32"]
        record = _task(
            task, model, source, out, pattern, recipes, schedule, seeds, steps, kept, control, format
        )
    elif source is None:
        raise ArgumentError("there is nothing to prune; give a checkpoint, or a --task such as digits")
    else:
        refuse_unused(context, _USED, "a checkpoint, which --task would train")
        record = _checkpoint(source, out, pattern, kept, format)

    from fewbits.report import prune_json, prune_page, prune_table

    tables_console(report, json).print(prune_table(record))
    origin = provenance(record.seeds)
    if out is not None:
        typer.echo(f"wrote {out}", err=True)
    write_report(json, lambda: prune_json([record], origin))
    write_report(report, lambda: prune_page([record], origin))


def _task(
    name: str,
    size: str,
    source: Path | None,
    out: Path | None,
    pattern: str,
    recipes: list[str],
    schedule: str,
    seeds: int,
    steps: int,
    kept: list[str],
    control: bool,
    format: str,
) -> PrunedModel:
    from fewbits.compare.pruning import prune_task
    from fewbits.files import load_file, save_file
    from fewbits.train.tasks import trained_task

    found = trained_task(name, size)
    check_fits("--keep", kept, [name for name, _ in found.create(0).named_modules()])
    with _work() as progress:
        record, weights = prune_task(
            found,
            pattern,
            recipes=recipes,
            schedule=schedule,
            seeds=seeds,
            steps=steps,
            exclude=kept,
            start=None if source is None else load_file(source),
            control=control,
            format=format,
            progress=progress,
        )
    if out is not None:
        save_file(weights, out)
    return record


def _checkpoint(source: Path, out: Path | None, pattern: str, kept: list[str], format: str) -> PrunedModel:
    from fewbits.compare.pruned_checkpoint import prune_checkpoint

    with _work() as progress:
        return prune_checkpoint(source, out, pattern, keep=kept, format=format, progress=progress)


@contextmanager
def _work() -> Iterator[Report]:
    try:
        with progress_bar() as progress:
            yield progress
    except KeyboardInterrupt:
        raise Interrupted("interrupted; nothing was written") from None
