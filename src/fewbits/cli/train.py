"""``fewbits train``: a built-in model, or one of the user's own text, by a recipe."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from fewbits.cli.aliases import Formats
from fewbits.cli.arguments import provenance, refuse_unused
from fewbits.cli.kinds import FOLDER, JSON, PAGE, Reads, Writes
from fewbits.cli.paths import tables_console, write_report
from fewbits.cli.progress import Interrupted, Report, progress_bar
from fewbits.errors import ArgumentError

if TYPE_CHECKING:
    from fewbits.recipes import Recipe
    from fewbits.records import TrainRun
    from fewbits.train import Step


def train(
    context: typer.Context,
    recipe: Annotated[
        list[str] | None,
        Formats(),
        typer.Option(
            help="A name, or a name and changes, as in mxfp6:gradient=mxfp8_e5m2/rceil; may be given several "
            "times; `list` prints them all. Default: fp32 and mxfp6."
        ),
    ] = None,
    task: Annotated[
        str,
        Reads(below=True),
        typer.Option(help="bytes, digits, faint, mnist10k, or the path of a text, a file or a folder."),
    ] = "bytes",
    model: Annotated[str, typer.Option(help="small (seconds on two cores) or base (minutes).")] = "small",
    steps: Annotated[int, typer.Option(min=0, help="0: as many as the task says.")] = 0,
    seeds: Annotated[int, typer.Option(min=1, help="How many runs of each recipe.")] = 1,
    out: Annotated[
        Path, Writes(FOLDER), typer.Option(help="Folder for checkpoints and logs, one below it for each run.")
    ] = Path("fewbits-train"),
    resume: Annotated[
        bool, typer.Option("--resume", help="Go on where the runs in --out stopped; same bits at the end.")
    ] = False,
    report: Annotated[
        Path | None,
        Writes(PAGE),
        typer.Option(help="Write losses and results as one HTML page.", show_default=False),
    ] = None,
    json: Annotated[
        Path | None, Writes(JSON), typer.Option(help="Write the table, and every run, as JSON.")
    ] = None,
) -> None:
    """Train a model by published recipes for narrow formats, and compare them.

    Each run writes log.jsonl, with the loss of every step and what rounding did to every operand, and a
    checkpoint from which --resume goes on. With fp32 among the recipes the table says what the others lose.

    Example: fewbits train --recipe fp32 --recipe mxfp6 --task digits --steps 100

    All recipes: fewbits train --recipe list
    """
    from fewbits.recipes import recipe as read

    names = recipe or ["fp32", "mxfp6"]
    if names == ["list"]:
        refuse_unused(context, {"recipe"}, "the list of recipes")
        _print_catalogue()
        return
    for name in names:
        read(name)
    if report is not None:
        from fewbits.report import check_plots

        check_plots()  # refuses now rather than after the work
    runs = _all_runs(names, task, model, steps, seeds, out, resume)

    from fewbits.report import train_json, train_page, train_table

    tables_console(report, json).print(train_table(runs))
    origin = provenance(range(seeds))
    write_report(json, lambda: train_json(runs, origin))
    write_report(report, lambda: train_page(runs, origin))


def _all_runs(
    names: list[str], task: str, model: str, steps: int, seeds: int, out: Path, resume: bool
) -> list[TrainRun]:
    from fewbits.train import Settings, run
    from fewbits.train.runs import folder_name

    runs = []
    try:
        with progress_bar() as show:
            for name in names:
                for seed in range(seeds):
                    settings = Settings(task, name, model, steps, seed)
                    folder = out / folder_name(settings)
                    if not resume and (folder / "checkpoint.safetensors").exists():
                        raise ArgumentError(
                            f"{folder} holds a run; go on with it by --resume, or choose another --out"
                        )
                    bar = _Bar(f"{name[:24]}, seed {seed}", show)
                    runs.append(
                        run(settings, folder, resume=resume, progress=bar.progress, callback=bar.callback)
                    )
    except KeyboardInterrupt:
        raise Interrupted(f"interrupted; the same command with --resume goes on from {out}") from None
    return runs


class _Bar:
    """Shows the steps of one run with the loss of the last one."""

    def __init__(self, name: str, show: Report) -> None:
        self.name, self.show, self.loss = name, show, ""

    def callback(self, step: Step) -> None:
        self.loss = f"loss {step.loss:.3f}"

    def progress(self, what: str, done: float, total: float) -> None:
        self.show(self.name, done, total, self.loss)


def _print_catalogue() -> None:
    from fewbits.recipes import RECIPES
    from fewbits.report import recipes_table

    tables_console().print(recipes_table([(r.name, _in_words(r), r.paper) for r in RECIPES.values()]))


def _in_words(recipe: Recipe) -> str:
    """Say what a recipe narrows, in one line for each kind of role."""
    if recipe.autocast:
        return f"torch.autocast to {recipe.autocast}"
    groups = {
        "weights": (recipe.forward_weight, recipe.dx_weight),
        "activations": (recipe.forward_activation, recipe.dw_activation),
        "gradients": (recipe.dx_gradient, recipe.dw_gradient),
    }
    said = []
    for what, (one, other) in groups.items():
        if one is not None:
            said.append(f"{what} {one}" + ("" if one == other else " (forward only)"))
    said += [f"vectors {recipe.vector}"] if recipe.vector != "fp32" else []
    stored = ("parameter", "held_gradient", "first_moment", "second_moment")
    said += [f"{s.replace('_', ' ')} {getattr(recipe, s)}" for s in stored if getattr(recipe, s) is not None]
    said += ["fp32 master copy"] if recipe.has_master else []
    said += [f"update {recipe.update}"] if recipe.update != "nearest" else []
    said += [f"loss scale {recipe.scaling}"] if recipe.scaling is not None else []
    said += [f"schedule {recipe.schedule}"] if recipe.schedule else []
    said += ["integer sums for products"] if recipe.product == "add" else []
    return "; ".join(said) or "nothing"
