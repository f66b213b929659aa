"""``fewbits profile``: where a training step's time goes, and how far it is from this machine's limits."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from fewbits.cli.aliases import Formats
from fewbits.cli.arguments import (
    CodecOption,
    JsonOption,
    ProcessesOption,
    ReportOption,
    SizeOption,
    checked_codec,
    provenance,
    read_recipes,
    refuse_idle,
)
from fewbits.cli.kinds import TRACE, Reads, Writes
from fewbits.cli.paths import tables_console, write_report
from fewbits.cli.streams import steady_streams
from fewbits.errors import ArgumentError

if TYPE_CHECKING:
    from fewbits.records import StepProfile


def profile(
    context: typer.Context,
    task: Annotated[
        str,
        Reads(below=True),
        typer.Option(
            help="A built-in task: digits, bytes, lstm; the path of a text of your own; or your own model as"
            " MODULE:FUNCTION, which returns (model, batches, loss)."
        ),
    ] = "digits",
    recipe: Annotated[
        str,
        Formats(),
        typer.Option(help="Of the task's step (see `fewbits recipes`): a name, or a name and changes."),
    ] = "fp32",
    compare: Annotated[
        str | None,
        Formats(),
        typer.Option(
            help="Comma-separated recipes in the place of --recipe: their steps beside each other, as in"
            " fp32,mxfp8.",
            show_default=False,
        ),
    ] = None,
    function: Annotated[
        str | None,
        typer.Option(
            help="Your own step in the place of a task, as MODULE:FUNCTION (my_training:step is step() in"
            " my_training.py): it is called without arguments and makes one step.",
            show_default=False,
        ),
    ] = None,
    size: SizeOption = "small",
    steps: Annotated[
        int, typer.Option(min=1, help="How many are timed, plain and under the profiler; medians count.")
    ] = 10,
    processes: ProcessesOption = 1,
    codec: CodecOption = None,
    trace: Annotated[
        Path | None,
        Writes(TRACE),
        typer.Option(
            help="Write the profiled steps as a Chrome trace, for chrome://tracing or Perfetto.",
            show_default=False,
        ),
    ] = None,
    report: ReportOption = None,
    json: JsonOption = None,
) -> None:
    """Show where a training step's time goes, and how far each operation is from this machine's limits.

    Time by class, by layer and by operation, as PyTorch's profiler sees it, beside the bytes and the
    arithmetic of each operation and the rates of this machine, measured; and what to do about the worst.

    Example: fewbits profile --task digits --recipe mxfp8

    Two recipes beside each other: fewbits profile --task bytes --compare fp32,mxfp8 --report profile.html

    Two processes: fewbits profile --task digits --processes 2 --codec mxfp8_e4m3
    """
    from fewbits.recipes import recipe as read

    names = read_recipes(compare, [recipe])
    for name in names:
        read(name)
    if compare is not None:
        refuse_idle(context, {"recipe", "trace"}, "--compare, which profiles several recipes")
    if not names:
        raise ArgumentError("there is nothing to compare; give recipes, as in --compare fp32,mxfp8")
    if function is not None:
        refuse_idle(
            context,
            {"task", "recipe", "compare", "size", "processes", "codec"},
            "--function, a step of your own",
        )
    from fewbits.train import launch

    started = launch.count_for(processes)
    if function is not None and started > 1:
        raise ArgumentError(
            f"--function is a step of one process, and torchrun started {started}; start it without torchrun"
        )
    travels = checked_codec(codec, started)
    job = _Job(task, tuple(names), function, size, steps, started, travels, trace, report, json)
    launch.run(processes, job)


@dataclass(frozen=True)
class _Job:
    """What each process does; the first one shows its profiles."""

    task: str
    recipes: tuple[str, ...]
    function: str | None
    size: str
    steps: int
    processes: int
    codec: str
    trace: Path | None
    report: Path | None
    json: Path | None

    def __call__(self) -> None:
        from fewbits.report import profile_json, profile_page, profile_table
        from fewbits.train.together import rank

        steady_streams()  # of a process that was started for it, too
        found = self._profiles(rank() == 0)
        if rank():
            return
        origin = provenance((0,) if self.function is None else ())
        if self.trace is not None:
            typer.echo(f"wrote {self.trace}", err=True)
        tables_console(self.report, self.json).print(profile_table(found))
        write_report(self.report, lambda: profile_page(found, origin))
        write_report(self.json, lambda: profile_json(found, origin))

    def _profiles(self, is_first: bool) -> Sequence[StepProfile]:
        from fewbits.profiling import profile_step
        from fewbits.profiling.steps import task_step, user_step
        from fewbits.train.reproducible import seeded
        from fewbits.train.tasks import task

        trace = self.trace if is_first else None
        if self.function is not None:
            step = user_step(self.function)
            return [profile_step(step, name=self.function, steps=self.steps, trace=trace)]
        chosen = task(self.task, self.size)
        found: list[StepProfile] = []
        for recipe in self.recipes:
            with seeded(chosen, 0):
                step = task_step(chosen, recipe, codec=self.codec)
                limits = found[-1].limits if found else None  # with the rates that it lacked
                found.append(
                    profile_step(
                        step, name=chosen.name, recipe=recipe, steps=self.steps, processes=self.processes,
                        trace=trace, limits=limits,
                    )
                )  # fmt: skip
        return found
