"""``fewbits compare``: what each format or codec saves and costs, on models, a checkpoint or a matrix."""

from __future__ import annotations

import shlex
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from fewbits.cli.arguments import (
    BudgetOption,
    CodecsOption,
    ExcludeOption,
    FormatsOption,
    IncludeOption,
    JsonOption,
    LatencyOption,
    ModelOption,
    ProcessesOption,
    ReportOption,
    ScaleRuleOption,
    SeedsOption,
    SizeOption,
    StepsOption,
    TaskOption,
    provenance,
    read_codecs,
    read_formats,
    read_list,
    read_numbers,
    refuse_idle,
    refuse_unused,
)
from fewbits.cli.calibration import CalibrateOption, MethodOption, ScaleOption
from fewbits.cli.kinds import Reads
from fewbits.cli.paths import tables_console, write_report
from fewbits.cli.progress import progress_bar
from fewbits.cli.text_models import ActivationsOption, DataOption, TextRequest, measure_text_model
from fewbits.errors import ArgumentError
from fewbits.formats import parse

if TYPE_CHECKING:
    from rich.console import RenderableType

    from fewbits.typing import Progress


@dataclass(frozen=True)
class _Request:
    """What the user asked for."""

    formats: str | None
    tasks: tuple[str, ...]
    model: str | None
    size: str
    seeds: int
    min_qsnr: float
    budget: float | None
    scale_rule: str
    include: tuple[str, ...]
    exclude: tuple[str, ...]
    train: bool
    codecs: str | None
    processes: int
    steps: int
    links: str
    latency_us: float

    def base_command(self, *options: str) -> str:
        """Return the part of the command line that every row of a report shares."""
        names = {"--include": ",".join(self.include), "--exclude": ",".join(self.exclude)}
        shared = [word for flag, text in names.items() if text for word in (flag, text)]
        return shlex.join(["fewbits", "compare", *options, *shared])

    def command_by_format(self, *options: str) -> Callable[[str], str]:
        """Return what gives that part for a format: a scale rule is refused where it would do nothing."""
        from fewbits.kernels import has_scale_rule

        def command(format: str) -> str:
            takes_rule = self.scale_rule != "floor" and has_scale_rule(parse(format))
            return self.base_command(*options, *(["--scale-rule", self.scale_rule] if takes_rule else []))

        return command


@dataclass(frozen=True)
class _Answer:
    """What was measured, ready to print and to write."""

    table: RenderableType
    page: Callable[[], str]
    json: Callable[[], str]


_MEASURED = {"formats", "scale_rule", "include", "exclude", "report", "json"}
_USED = {
    "models": _MEASURED | {"task", "size", "seeds", "train"},
    "codecs": {"codecs", "task", "model", "size", "seeds", "steps", "processes", "links", "latency_us"}
    | {"report", "json"},
    "a model of your own": _MEASURED | {"model"},
    "a checkpoint": _MEASURED | {"target", "min_qsnr", "budget", "model"},
    "a matrix": {"target", "formats", "report", "json"},
    "a model of Hugging Face": _MEASURED | {"target", "data", "method", "scale", "calibrate", "activations"},
}


def compare(
    context: typer.Context,
    target: Annotated[
        Path | None,
        Reads(),
        typer.Argument(
            help="A .safetensors file, a folder of them with an index, an .onnx model, or a .mtx matrix; with"
            " --data the folder of a model of Hugging Face. Default: the models of --task, or your own"
            " --model.",
            show_default=False,
        ),
    ] = None,
    formats: FormatsOption = None,
    task: TaskOption = "bytes,digits",
    model: ModelOption = None,
    size: SizeOption = "small",
    seeds: SeedsOption = 3,
    min_qsnr: Annotated[
        float,
        typer.Option(
            help="Checkpoints: propose formats that keep at least this QSNR, in dB: of the outputs with "
            "--model, else of the mean of the tensors."
        ),
    ] = 30.0,
    budget: BudgetOption = None,
    scale_rule: ScaleRuleOption = None,
    include: IncludeOption = None,
    exclude: ExcludeOption = None,
    train: Annotated[
        bool,
        typer.Option(
            "--train", help="Also train a model of each task in each format from scratch, per seed."
        ),
    ] = False,
    codecs: CodecsOption = None,
    processes: ProcessesOption = 4,
    steps: StepsOption = 0,
    links: Annotated[
        str,
        typer.Option(
            help="With --codecs: comma-separated speeds, in Gbit/s, of the links between processes, for which"
            " the time of a step is predicted."
        ),
    ] = "1,10,100",
    latency_us: LatencyOption = 20.0,
    data: DataOption = None,
    method: MethodOption = None,
    scale: ScaleOption = "amax",
    calibrate: CalibrateOption = None,
    activations: ActivationsOption = False,
    report: ReportOption = None,
    json: JsonOption = None,
) -> None:
    """Measure what each narrow format saves and what it costs.

    With nothing else it trains two small models on data that is already on the machine (a byte-level
    language model on the source of Python's own library, a classifier of handwritten digits), rounds weights
    and activations to each format, and evaluates them on held-out data. Trained models are cached.
    With --train it also trains a model in each format from scratch, weights, activations and gradients,
    which takes half a minute for each format and seed; those are not cached. A --model of your own is taken
    with the weights that it has; beside a checkpoint, what each tensor does to its outputs decides.

    Example: fewbits compare --formats mxfp4,mxfp6_e2m3,mx6 --report report.html

    A checkpoint: fewbits compare model.safetensors --min-qsnr 25 --json proposal.json

    Within a size: fewbits compare model.safetensors --budget 4.5 --json proposal.json

    What it proposes, written: fewbits cast model.safetensors narrow.safetensors --map proposal.json

    A matrix: fewbits compare matrix.mtx

    A model of Hugging Face, on texts: fewbits compare model/ --data texts/ --method gptq

    Codecs of gradients, in training by several processes: fewbits compare --codecs default --task digits
    """
    if data is not None:
        if target is None:
            raise ArgumentError(f"--data {data} without a model; give the folder of a model of Hugging Face")
        kind = "a model of Hugging Face"
    elif target is None:
        kind = "codecs" if codecs is not None else "models" if model is None else "a model of your own"
    else:
        kind = "a matrix" if _is_matrix(target) else "a checkpoint"
    refuse_unused(context, _USED[kind], kind)
    if budget is not None:
        refuse_idle(context, {"min_qsnr"}, "a --budget, which decides")
    text = None
    if data is not None and target is not None:
        if method in (None, "round") and scale == "amax":
            refuse_idle(context, {"calibrate"}, "rounding, which takes no data")
        text = TextRequest(
            folder=target,
            data=data,
            formats=formats,
            method=method or "round",
            scale=scale,
            calibrate=calibrate,
            activations=activations,
            scale_rule=scale_rule or "floor",
            include=tuple(read_list(include)),
            exclude=tuple(read_list(exclude)),
        )
    request = _Request(
        formats=formats,
        tasks=tuple(read_list(task)) if model is None else (model,),
        model=model,
        size=size,
        seeds=seeds if model is None or codecs is not None else 1,
        min_qsnr=min_qsnr,
        budget=budget,
        scale_rule=scale_rule or "floor",
        include=tuple(read_list(include)),
        exclude=tuple(read_list(exclude)),
        train=train,
        codecs=codecs,
        processes=processes,
        steps=steps,
        links=links,
        latency_us=latency_us,
    )
    with progress_bar() as progress:
        answer = _measured(target, request, progress) if text is None else _text(text, request, progress)
    tables_console(report, json).print(answer.table)
    write_report(report, answer.page)
    write_report(json, answer.json)


def _measured(target: Path | None, request: _Request, progress: Progress) -> _Answer:
    if target is None:
        return _tasks(request, progress) if request.codecs is None else _codecs(request, progress)
    measure = _matrix if _is_matrix(target) else _checkpoint
    return measure(target, request, progress)


def _is_matrix(target: Path) -> bool:
    return target.suffix.lower() == ".mtx"


def _tasks(request: _Request, progress: Progress) -> _Answer:
    read_formats(request.formats, ["fp32"])  # a wrong name is told before PyTorch is loaded
    from fewbits.compare import TASK_FORMATS, compare_models
    from fewbits.report import tasks_json, tasks_page, tasks_table

    scores = compare_models(
        request.tasks,
        read_formats(request.formats, TASK_FORMATS),
        size=request.size,
        seeds=request.seeds,
        scale_rule=request.scale_rule,
        include=request.include,
        exclude=request.exclude,
        train=request.train,
        progress=progress,
    )
    origin = provenance(range(request.seeds))
    options = [] if request.size == "small" else ["--size", request.size]
    return _Answer(
        tasks_table(scores),
        lambda: tasks_page(scores, origin, base_command=request.command_by_format(*options)),
        lambda: tasks_json(scores, origin),
    )


def _text(text: TextRequest, request: _Request, progress: Progress) -> _Answer:
    from fewbits.report import tasks_json, tasks_page, tasks_table

    scores = measure_text_model(text, progress)
    origin = provenance()
    return _Answer(
        tasks_table(scores),
        lambda: tasks_page(scores, origin, base_command=request.command_by_format(*text.options)),
        lambda: tasks_json(scores, origin),
    )


def _codecs(request: _Request, progress: Progress) -> _Answer:
    from fewbits.recipes import codec as read

    for name in read_codecs(request.codecs, []):
        read(name)  # a wrong one is told before PyTorch is loaded
    speeds = read_numbers("links", request.links)
    from fewbits.compare import CODECS, compare_codecs
    from fewbits.report import codecs_json, codecs_page, codecs_table

    comparisons = compare_codecs(
        request.tasks,
        read_codecs(request.codecs, CODECS),
        processes=request.processes,
        size=request.size,
        seeds=request.seeds,
        steps=request.steps,
        links=speeds,
        latency_us=request.latency_us,
        progress=progress,
    )
    origin = provenance(range(request.seeds))
    options = ["--size", request.size, "--seeds", str(request.seeds), "--steps", str(request.steps)]
    options += ["--processes", str(request.processes), "--links", request.links]
    base = request.base_command(*options, "--latency-us", repr(request.latency_us))
    return _Answer(
        codecs_table(comparisons),
        lambda: codecs_page(comparisons, origin, base_command=base),
        lambda: codecs_json(comparisons, origin),
    )


def _checkpoint(target: Path, request: _Request, progress: Progress) -> _Answer:
    from fewbits.compare import CHECKPOINT_FORMATS, measure_checkpoint
    from fewbits.report import checkpoint_json, checkpoint_page, checkpoint_table

    measured = measure_checkpoint(
        target,
        read_formats(request.formats, CHECKPOINT_FORMATS),
        min_qsnr_db=request.min_qsnr,
        budget=request.budget,
        scale_rule=request.scale_rule,
        model=request.model,
        include=request.include,
        exclude=request.exclude,
        progress=progress,
    )
    origin = provenance()
    through = () if request.model is None else ("--model", request.model)
    # A budget is of all formats together: most of them alone are above it.
    bound = ("--min-qsnr", repr(request.min_qsnr)) if request.budget is None else ()
    base = request.command_by_format(*bound, *through)
    return _Answer(
        checkpoint_table(measured),
        lambda: checkpoint_page(measured, origin, base_command=base),
        lambda: checkpoint_json(measured, origin),
    )


def _matrix(target: Path, request: _Request, progress: Progress) -> _Answer:
    from fewbits.compare import MATRIX_FORMATS, measure_matrix
    from fewbits.report import matrices_json, matrices_page, matrices_table

    scores = measure_matrix(target, read_formats(request.formats, MATRIX_FORMATS), progress=progress)
    origin, base = provenance(), request.base_command()
    by_path = [replace(score, matrix=str(target)) for score in scores]  # for the commands of the page
    return _Answer(
        matrices_table(scores),
        lambda: matrices_page(by_path, origin, base_command=base),
        lambda: matrices_json(scores, origin),
    )
