"""``fewbits bench``: time to quality of recipes, and logs of it."""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from fewbits.cli.arguments import (
    CodecOption,
    JsonOption,
    ProcessesOption,
    RecipeOption,
    ReportOption,
    ResumeOption,
    checked_codec,
    provenance,
    read_recipes,
    refuse_unused,
)
from fewbits.cli.kinds import FOLDER, Reads, Writes
from fewbits.cli.paths import tables_console, write_report
from fewbits.cli.progress import Interrupted, Report, progress_bar
from fewbits.cli.streams import steady_streams
from fewbits.errors import ArgumentError

_OUT = Path("fewbits-bench")


def bench(
    context: typer.Context,
    recipe: RecipeOption = "fp32,mxfp6",
    task: Annotated[
        str,
        typer.Option(
            help="A benchmark: digits (seconds), mnist10k, bytes, lstm (minutes), or MODULE:FUNCTION of a"
            " function of your own that returns a fewbits.bench.Benchmark."
        ),
    ] = "digits",
    runs: Annotated[
        int | None,
        typer.Option(
            min=3,
            max=100,
            help="Runs of each recipe, from the seeds 0, 1, ...; as many as a result of the benchmark takes,"
            " or more. Default: as many.",
            show_default=False,
        ),
    ] = None,
    processes: ProcessesOption = 1,
    codec: CodecOption = None,
    out: Annotated[
        Path | None,
        Writes(FOLDER),
        typer.Option(
            help="Folder for checkpoints, in runs/, and logs in MLPerf's format, in logs/, a folder for each"
            " recipe. Default: fewbits-bench, without logs.",
            show_default=False,
        ),
    ] = None,
    resume: ResumeOption = False,
    check: Annotated[
        Path | None,
        Reads(below=True),
        typer.Option(
            help="Measure nothing, and check the logs in this folder: by the official checker, where it is"
            " installed, and by rules of our own.",
            show_default=False,
        ),
    ] = None,
    report: ReportOption = None,
    json: JsonOption = None,
) -> None:
    """Measure the time that recipes take to a given quality, by the rules of MLPerf Training.

    Each recipe trains from each seed until its model is good enough; the clock runs from before the data is
    touched. The fastest and the slowest run are dropped. With fp32 among the recipes, the table has the ratio
    to it with its interval. The logs are in MLPerf's log format; nothing here is an MLPerf result.

    Example: fewbits bench --recipe fp32,mxfp6 --task digits

    With logs, and checked: fewbits bench --recipe fp32,mxfp6 --out measured/

    fewbits bench --check measured/
    """
    if check is not None:
        refuse_unused(context, {"check"}, "--check, which measures nothing")
        _check(check)
        return
    from fewbits.recipes import recipe as read

    names = read_recipes(recipe, [])
    for name in names:
        read(name)
    if not names:
        raise ArgumentError("there is nothing to measure; give a --recipe, as in fp32,mxfp6")
    from fewbits.bench import benchmark as read_benchmark
    from fewbits.bench import check_loggable

    if out is not None:
        check_loggable(names)
    from fewbits.train import launch  # needs torch: simple mistakes are told before that loads

    read_benchmark(task)  # a wrong one is told before processes start
    travels = checked_codec(codec, launch.count_for(processes))
    if out is not None:
        check_loggable(codec=travels)
    launch.run(processes, _Job(names, task, runs, travels, out, resume, report, json))


@dataclass(frozen=True)
class _Job:
    """What each process does: all runs; the first process shows them."""

    recipes: list[str]
    task: str
    runs: int | None
    codec: str
    out: Path | None
    resume: bool
    report: Path | None
    json: Path | None

    def __call__(self) -> None:
        from fewbits.bench import benchmark as read
        from fewbits.bench import run_benchmark, write_logs
        from fewbits.report import benchmark_json, benchmark_page, benchmark_table
        from fewbits.train.together import rank

        steady_streams()  # of a process that was started for it, too
        benchmark, folder = read(self.task), self.out or _OUT
        seeds = range(benchmark.runs if self.runs is None else self.runs)
        try:
            with progress_bar() if rank() == 0 else nullcontext[Report | None](None) as show:
                measured = run_benchmark(
                    benchmark,
                    self.recipes,
                    folder / "runs",
                    seeds=seeds,
                    codec=self.codec,
                    resume=self.resume,
                    progress=show,
                )
        except KeyboardInterrupt:
            raise Interrupted(f"interrupted; the same command with --resume goes on from {folder}") from None
        if measured is None:
            return
        origin = provenance(seeds)
        tables_console(self.report, self.json).print(benchmark_table(measured))
        write_report(self.json, lambda: benchmark_json(measured, origin))
        write_report(self.report, lambda: benchmark_page(measured, origin))
        if self.out is not None:
            for written in write_logs(measured, folder / "logs"):
                typer.echo(f"wrote {written}", err=True)


def _check(folder: Path) -> None:
    """Show what is wrong with the logs in a folder; exit with 1 if anything is."""
    from fewbits.bench import check_logs
    from fewbits.report import logs_table
    from fewbits.report.quantities import visible

    with progress_bar() as progress:
        checks = check_logs(folder, progress=progress)
    tables_console().print(logs_table(checks))
    problems = [problem for one in checks for problem in one.problems]
    for problem in problems:
        typer.echo(f"fewbits: {visible(problem)}", err=True)
    if problems:
        raise typer.Exit(1)
