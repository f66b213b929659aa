"""``fewbits prune``: a checkpoint, or a model of a task, to structured sparsity."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fewbits.cli.arguments import (
    ExcludeOption,
    FormatOption,
    IncludeOption,
    JsonOption,
    ModelOption,
    PatternOption,
    RecipeOption,
    ReportOption,
    SeedsOption,
    SizeOption,
    StepsOption,
    TaskOption,
    provenance,
    read_list,
    read_recipes,
    read_tasks,
    refuse_idle,
    refuse_unused,
)
from fewbits.cli.kinds import TENSORS, Reads, Writes
from fewbits.cli.paths import tables_console, write_report
from fewbits.cli.progress import Interrupted, progress_bar
from fewbits.errors import ArgumentError

if TYPE_CHECKING:
    from fewbits.records import PrunedModel
    from fewbits.typing import Progress

# What counts for a checkpoint alone.
_USED = {"source", "out", "pattern", "include", "exclude", "format", "report", "json"}


def prune(
    context: typer.Context,
    source: Annotated[
        Path | None,
        Reads(),
        typer.Argument(
            help="A .safetensors file, or a folder of them; with --task or --model, the weights of the dense"
            " model. Default: with these, a model that is trained first.",
            show_default=False,
        ),
    ] = None,
    out: Annotated[
        Path | None,
        Writes(TENSORS),
        typer.Option(help="Write the pruned model as a .safetensors file: dense, with zeros."),
    ] = None,
    pattern: PatternOption = "2:4",
    include: IncludeOption = None,
    exclude: ExcludeOption = None,
    task: TaskOption = None,
    model: ModelOption = None,
    size: SizeOption = "small",
    recipe: RecipeOption = "fp32",
    schedule: Annotated[
        str, typer.Option(help="When masks are made in retraining: frozen, recomputed, gradual or sr_ste.")
    ] = "frozen",
    steps: StepsOption = 0,
    seeds: SeedsOption = 1,
    control: Annotated[
        bool, typer.Option("--control", help="Train the dense models again too: what retraining alone does.")
    ] = False,
    format: FormatOption = "bf16",
    report: ReportOption = None,
    json: JsonOption = None,
) -> None:
    """Prune a model to N:M, at most N of every M neighbouring weights, and train it again.

    A checkpoint is pruned by magnitude, along the last axis, and along the second of what has four axes, or
    three of which the last is shorter than 32: kernels of convolutions. The table has the axis; name tensors
    that are something else in --exclude. --format is that of the values in which sizes and products are
    measured. The model of a --task, or your own, is trained, pruned, and trained once more by each --recipe
    with a frozen mask, as the published recipe has it; the table says how good it is at each stage. With
    --recipe none nothing is trained again.

    Example: fewbits prune --task digits --steps 100 --out pruned.safetensors

    A checkpoint of your own: fewbits prune model.safetensors --exclude '*embed*' --out pruned.safetensors
    """
    if model is not None:
        refuse_idle(context, {"task", "size"}, "--model, which is your own")
    names = [model] if model is not None else read_tasks(task)
    chosen: dict[str, Any] = {
        "pattern": pattern or "2:4",
        "include": read_list(include),
        "exclude": read_list(exclude),
        "format": format,
    }
    if len(names) > 1 and (out is not None or source is not None):
        raise ArgumentError(f"{len(names)} tasks, and one place for weights; give one --task with weights")
    if names:
        recipes = read_recipes(recipe, ["fp32"])
        trainings = {"recipes": recipes, "schedule": schedule, "steps": steps, "seeds": seeds}
        records = _prune_tasks(names, size, source, out, chosen | trainings | {"control": control})
    elif source is None:
        raise ArgumentError("there is nothing to prune; give a checkpoint, or a --task such as digits")
    else:
        refuse_unused(context, _USED, "a checkpoint, which --task would train")
        from fewbits.compare import prune_checkpoint

        with _interruptible() as progress:
            records = [prune_checkpoint(source, out, progress=progress, **chosen)]

    from fewbits.report import prune_json, prune_page, prune_table

    console = tables_console(report, json)
    for record in records:
        console.print(prune_table(record))
    origin = provenance(records[0].seeds)
    if out is not None:
        typer.echo(f"wrote {out}", err=True)
    write_report(json, lambda: prune_json(records, origin))
    write_report(report, lambda: prune_page(records, origin))


def _prune_tasks(
    names: list[str], size: str, source: Path | None, out: Path | None, chosen: dict[str, Any]
) -> list[PrunedModel]:
    from fewbits.compare import prune_task
    from fewbits.files import save_file
    from fewbits.train.starting_weights import start_from
    from fewbits.train.tasks import task as read_task

    records = []
    with _interruptible() as progress:
        for name in names:
            task, start = read_task(name, size), None
            if source is not None:
                model = task.create(0)
                start_from(model, source)
                start = model.state_dict()
            record, weights = prune_task(task, start=start, progress=progress, **chosen)
            records.append(record)
            if out is not None:
                save_file(weights, out)
    return records


@contextmanager
def _interruptible() -> Iterator[Progress]:
    try:
        with progress_bar() as progress:
            yield progress
    except KeyboardInterrupt:
        raise Interrupted("interrupted; nothing was written") from None
