"""``fewbits train``: a built-in model, or one of the user's own text, by a recipe."""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from fewbits.cli.arguments import (
    CodecOption,
    ExcludeOption,
    IncludeOption,
    JsonOption,
    ProcessesOption,
    RecipeOption,
    ReportOption,
    ResumeOption,
    SeedsOption,
    SizeOption,
    StepsOption,
    TaskOption,
    checked_codec,
    provenance,
    read_list,
    read_recipes,
    read_tasks,
    refuse_idle,
)
from fewbits.cli.kinds import FOLDER, Reads, Writes
from fewbits.cli.paths import tables_console, write_report
from fewbits.cli.progress import Interrupted, Report, progress_bar
from fewbits.cli.streams import steady_streams
from fewbits.errors import ArgumentError

if TYPE_CHECKING:
    from fewbits.records import TrainRun
    from fewbits.train import Settings, Step


def train(
    context: typer.Context,
    recipe: RecipeOption = "fp32,mxfp6",
    task: TaskOption = "bytes",
    model: Annotated[
        str | None,
        typer.Option(
            help="lstm: an LSTM in the place of the transformer, on the text of --task. Or your own model in"
            " the place of a task, as MODULE:FUNCTION (my_models:load is load() in my_models.py), which"
            " returns (model, batches, loss).",
            show_default=False,
        ),
    ] = None,
    size: SizeOption = "small",
    steps: StepsOption = 0,
    lr: Annotated[
        float | None,
        typer.Option(
            help="Learning rate: its peak, reached after a tenth of the steps. Default: as the task says,"
            " whose rates are AdamW's; recipes with SGD or LARS want others.",
            show_default=False,
        ),
    ] = None,
    batch_size: Annotated[
        int | None,
        typer.Option(
            min=1,
            help="Samples in a step; of a model of your own, batches. Default: as the task says.",
            show_default=False,
        ),
    ] = None,
    include: IncludeOption = None,
    exclude: ExcludeOption = None,
    seeds: SeedsOption = 1,
    processes: ProcessesOption = 1,
    codec: CodecOption = None,
    local_steps: Annotated[
        int,
        typer.Option(
            min=0,
            help="Steps that processes take on their own before they exchange how far they came; 0: they"
            " average the gradients of each step.",
        ),
    ] = 0,
    shard_states: Annotated[
        bool,
        typer.Option(
            "--shard-states",
            help="Each process holds the optimizer's states and master weights of its own tensors only, and"
            " sends all others the new weights as the recipe holds them.",
        ),
    ] = False,
    out: Annotated[
        Path, Writes(FOLDER), typer.Option(help="Folder for checkpoints and logs, one below it for each run.")
    ] = Path("fewbits-train"),
    resume: ResumeOption = False,
    from_: Annotated[
        Path | None,
        Reads(),
        typer.Option(
            "--from",
            help="Start from the weights of a checkpoint: of a run of the same task, of a file with the"
            " model's tensors, or of what `fewbits cast` made of one. To fine-tune, give a lower --lr.",
            show_default=False,
        ),
    ] = None,
    report: ReportOption = None,
    json: JsonOption = None,
) -> None:
    """Train a model by published recipes for narrow formats, and compare them.

    Each run writes log.jsonl, with the loss of every step and what rounding did to every operand, and a
    checkpoint from which --resume goes on. With fp32 among the recipes the table says what the others lose.

    Example: fewbits train --recipe fp32,mxfp6 --task digits --steps 100

    An LSTM: fewbits train --recipe fp32,fp16-master --model lstm

    Two processes: fewbits train --recipe fp32 --task digits --processes 2 --codec mxfp8_e4m3

    Their memory, too: fewbits train --recipe fp8-lm --task digits --processes 2 --shard-states

    Fine-tuned: fewbits train --from runs/bytes-fp32-seed0 --recipe mxfp6-finetune --steps 60

    All recipes: fewbits recipes
    """
    from fewbits.recipes import recipe as read

    names = read_recipes(recipe, [])
    whole = [name for name in names if read(name).autocast]
    if whole and (read_list(exclude) or set(read_list(include)) - {"*"}):
        raise ArgumentError(
            f"{whole[0]} is torch.autocast around the whole model; train it by a command without --include"
            " and --exclude"
        )
    own = model if model is not None and ":" in model else None
    tasks = read_tasks(task) if own is None else [own]
    if own is not None:
        refuse_idle(context, {"task", "size"}, "--model, which is your own")
    if not names or not tasks:
        raise ArgumentError("there is nothing to train; give a --recipe and a --task, as in fp32 and bytes")
    if len(tasks) > 1 and report is not None:
        raise ArgumentError("--report has a page for one --task; give one, or leave the page out")
    if from_ is not None and seeds > 1:
        raise ArgumentError(
            "--seeds with --from: seeds differ by their initial weights, and --from gives these; give one"
        )
    if from_ is not None and len(tasks) > 1:
        raise ArgumentError("--from is a checkpoint of one --task; give that one")
    from fewbits.train import Settings, launch  # needs torch: simple mistakes are told before that loads

    started = launch.count_for(processes)
    changes = Settings(
        "",
        "",
        size,
        steps,
        lr=lr,
        batch_size=batch_size,
        include=tuple(read_list(include)) or ("*",),
        exclude=tuple(read_list(exclude)),
        processes=started,
        codec=checked_codec(codec, started),
        local_steps=local_steps,
        model="" if own is not None or model is None else model,
        shard_states=shard_states,
        start="" if from_ is None else str(from_),
    )
    job = _Job(names, [replace(changes, task=each) for each in tasks], seeds, out, resume, report, json)
    launch.run(processes, job)


@dataclass(frozen=True)
class _Job:
    """What each process does: all runs; the first process shows them."""

    recipes: list[str]
    of_tasks: list[Settings]
    seeds: int
    out: Path
    resume: bool
    report: Path | None
    json: Path | None

    def __call__(self) -> None:
        from fewbits.report import train_json, train_page, train_table
        from fewbits.train.together import rank

        steady_streams()  # of a process that was started for it, too
        given = [self._settings(each) for each in self.of_tasks]
        _check_folders([settings for of_task in given for settings in of_task], self.out, self.resume)
        runs = [_all_runs(of_task, self.out, self.resume) for of_task in given]
        if rank():
            return
        console = tables_console(self.report, self.json)
        for of_task in runs:
            console.print(train_table(of_task))
        origin = provenance(range(self.seeds))
        write_report(self.json, lambda: train_json([run for of_task in runs for run in of_task], origin))
        write_report(self.report, lambda: train_page(runs[0], origin))

    def _settings(self, of_task: Settings) -> list[Settings]:
        return [replace(of_task, recipe=r, seed=seed) for r in self.recipes for seed in range(self.seeds)]


def _check_folders(runs: list[Settings], out: Path, resume: bool) -> None:
    """Raise, before the first run, where a folder is that of another one."""
    from fewbits.train.checkpoint import begun
    from fewbits.train.runs import folder_name

    of_folder: dict[str, Settings] = {}
    for settings in runs:
        name = folder_name(settings)
        other = of_folder.setdefault(name, settings)
        if other is not settings:
            raise ArgumentError(
                f"{other.task} by {other.recipe!r} and {settings.task} by {settings.recipe!r} would both lie"
                f" in {out / name}; train them by two commands, each with an --out of its own"
            )
        if not resume and begun(out / name):
            raise ArgumentError(
                f"{out / name} holds a run; go on with it by --resume, or choose another --out"
            )


def _all_runs(settings: list[Settings], out: Path, resume: bool) -> list[TrainRun]:
    from fewbits.train import run
    from fewbits.train.runs import folder_name
    from fewbits.train.together import rank

    runs = []
    try:
        with progress_bar() if rank() == 0 else nullcontext[Report](_silent) as show:
            for one in settings:
                bar = _Bar(f"{one.recipe[:24]}, seed {one.seed}", show)
                folder = out / folder_name(one)
                runs.append(run(one, folder, resume=resume, progress=bar.progress, callback=bar.callback))
    except KeyboardInterrupt:
        raise Interrupted(f"interrupted; the same command with --resume goes on from {out}") from None
    return runs


def _silent(what: str, done: float, total: float, note: str = "") -> None:
    """Show nothing: the first process does."""


class _Bar:
    """Shows the steps of one run with the loss of the last one."""

    def __init__(self, name: str, show: Report) -> None:
        self.name, self.show, self.loss = name, show, ""

    def callback(self, step: Step) -> None:
        self.loss = f"loss {step.loss:.3f}"

    def progress(self, what: str, done: float, total: float) -> None:
        self.show(self.name, done, total, self.loss)
