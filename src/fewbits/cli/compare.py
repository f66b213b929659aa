"""``fewbits compare``: what each format saves and costs, on built-in models, a checkpoint or a matrix."""

from __future__ import annotations

import shlex
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer

from fewbits.cli.aliases import Formats
from fewbits.cli.arguments import provenance, read_formats, refuse_unused, split_list
from fewbits.cli.kinds import JSON, PAGE, Reads, Writes
from fewbits.cli.paths import tables_console, write_report
from fewbits.cli.progress import Report, progress_bar
from fewbits.formats import Format
from fewbits.records import Provenance


@dataclass(frozen=True)
class _Asked:
    """What the user asked for, checked."""

    formats: str | None
    tasks: str
    data: Path | None
    seeds: int
    min_qsnr: float
    model: Path | None
    scale_rule: str
    train: bool


@dataclass(frozen=True)
class _Answer:
    """What was measured, ready to print and to write."""

    table: Any
    page: Callable[[], str]
    json: Callable[[], str]


_USED = {
    "models": {"formats", "tasks", "data", "seeds", "scale_rule", "train", "report", "json"},
    "a checkpoint": {"target", "formats", "min_qsnr", "model", "scale_rule", "report", "json"},
    "a matrix": {"target", "formats", "report", "json"},
}


def compare(
    context: typer.Context,
    target: Annotated[
        Path | None,
        Reads(),
        typer.Argument(
            help="A .safetensors file, a folder of them with an index, or a .mtx matrix. "
            "Nothing: two small models."
        ),
    ] = None,
    formats: Annotated[
        str | None,
        Formats(),
        typer.Option(help='Comma-separated, as in mxfp4,mx6,"float(e=3,m=2)". Default: a sensible list.'),
    ] = None,
    tasks: Annotated[
        str,
        typer.Option(help="Which built-in models: bytes (a language model), digits (a classifier)."),
    ] = "bytes,digits",
    data: Annotated[
        Path | None,
        Reads(below=True),
        typer.Option(help="Your own text for the bytes task, a file or a folder."),
    ] = None,
    seeds: Annotated[int, typer.Option(help="How many models to train per task.", min=1, max=100)] = 3,
    min_qsnr: Annotated[
        float,
        typer.Option(
            help="Checkpoints: propose formats that keep at least this QSNR, in dB: of the outputs with "
            "--model, else of the mean of the tensors."
        ),
    ] = 30.0,
    model: Annotated[
        Path | None,
        Reads(),
        typer.Option(
            help="Checkpoints: a Python file whose function load() returns (model, batches); it is run, and "
            "what each tensor does to the model's outputs decides.",
            show_default=False,
        ),
    ] = None,
    scale_rule: Annotated[
        str, typer.Option(help="How power-of-two scales are chosen: floor, ceil, rceil, even, ...")
    ] = "floor",
    train: Annotated[
        bool,
        typer.Option(
            "--train", help="Built-in models: also train one in each format from scratch, per seed."
        ),
    ] = False,
    report: Annotated[
        Path | None, Writes(PAGE), typer.Option(help="Write an HTML page, one file that opens offline.")
    ] = None,
    json: Annotated[
        Path | None, Writes(JSON), typer.Option(help="Write everything measured as JSON.")
    ] = None,
) -> None:
    """Measure what each narrow format saves and what it costs.

    With nothing else it trains two small models on data that is already on the machine (a byte-level
    language model on the source of Python's own library, a classifier of handwritten digits), rounds weights
    and activations to each format, and evaluates them on held-out data. Trained models are cached.
    With --train it also trains a model in each format from scratch, weights, activations and gradients,
    which takes half a minute for each format and seed; those are not cached.

    Example: fewbits compare --formats mxfp4,mxfp6_e2m3,mx6 --report report.html

    A checkpoint: fewbits compare model.safetensors --min-qsnr 25 --json proposal.json

    What it proposes, written: fewbits cast model.safetensors narrow.safetensors --map proposal.json

    A matrix: fewbits compare matrix.mtx
    """
    kind = "models" if target is None else "a matrix" if target.suffix == ".mtx" else "a checkpoint"
    refuse_unused(context, _USED[kind], kind)
    if report is not None:
        from fewbits.report import check_plots

        check_plots()  # a missing Plotly is told before the work, not after it
    asked = _Asked(formats, tasks, data, seeds, min_qsnr, model, scale_rule, train)
    with progress_bar() as progress:
        answer = _measured(target, asked, progress)
    tables_console(report, json).print(answer.table)
    write_report(report, answer.page)
    write_report(json, answer.json)


def _measured(target: Path | None, asked: _Asked, progress: Report) -> _Answer:
    if target is None:
        return _tasks(asked, progress)
    return (
        _matrix(target, asked, progress) if target.suffix == ".mtx" else _checkpoint(target, asked, progress)
    )


def _tasks(asked: _Asked, progress: Report) -> _Answer:
    read_formats(asked.formats, ["fp32"])  # a wrong name is told before PyTorch is loaded
    from fewbits.compare.models import TASK_FORMATS, compare_models
    from fewbits.report import tasks_json, tasks_page, tasks_table

    fmts = read_formats(asked.formats, TASK_FORMATS)
    scores = compare_models(
        split_list(asked.tasks),
        fmts,
        seeds=asked.seeds,
        data=asked.data,
        scale_rule=asked.scale_rule,
        train=asked.train,
        progress=progress,
    )
    origin = provenance(range(asked.seeds))
    base = _base(asked, () if asked.data is None else ("--data", str(asked.data)))
    return _Answer(
        tasks_table(scores),
        lambda: tasks_page(scores, origin, base_command=base),
        lambda: tasks_json(scores, origin),
    )


def _checkpoint(target: Path, asked: _Asked, progress: Report) -> _Answer:
    from fewbits.compare.checkpoint import CHECKPOINT_FORMATS, measure_checkpoint
    from fewbits.report import checkpoint_json, checkpoint_page, checkpoint_table

    fmts: list[Format] = read_formats(asked.formats, CHECKPOINT_FORMATS)
    found = measure_checkpoint(
        target,
        fmts,
        min_qsnr_db=asked.min_qsnr,
        scale_rule=asked.scale_rule,
        model=asked.model,
        progress=lambda done, total, name: progress("measuring tensors", done, total),
        model_progress=lambda done, total, name: progress("measuring the model", done, total),
    )
    origin: Provenance = provenance()
    through = () if asked.model is None else ("--model", str(asked.model))
    base = _base(asked, ("--min-qsnr", f"{asked.min_qsnr:g}", *through))
    return _Answer(
        checkpoint_table(found),
        lambda: checkpoint_page(found, origin, base_command=base),
        lambda: checkpoint_json(found, origin),
    )


def _matrix(target: Path, asked: _Asked, progress: Report) -> _Answer:
    from fewbits.compare.matrix import MATRIX_FORMATS, measure_matrix
    from fewbits.report import matrices_json, matrices_page, matrices_table

    fmts = read_formats(asked.formats, MATRIX_FORMATS)
    scores = measure_matrix(
        target, fmts, progress=lambda done, total: progress("measuring formats", done, total)
    )
    origin = provenance()
    base = _base(asked, ())
    return _Answer(
        matrices_table(scores),
        lambda: matrices_page(scores, origin, base_command=base),
        lambda: matrices_json(scores, origin),
    )


def _base(asked: _Asked, options: tuple[str, ...]) -> str:
    """Return the part of the command line that every row of a report shares."""
    rule = () if asked.scale_rule == "floor" else ("--scale-rule", asked.scale_rule)
    return shlex.join(["fewbits", "compare", *options, *rule])
