"""The page of trained models: their losses on the way, and how good they are at the end."""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import fmean

from fewbits.records import Provenance, TrainRun
from fewbits.report.axes import linear_axis, log10_axis
from fewbits.report.figures import Curve, curves, strips
from fewbits.report.judgement import METRICS, evidence_sentence
from fewbits.report.markup import curve_legend, figure, glossary, page, paragraph, section, table
from fewbits.report.training import TRAIN_COLUMNS, RecipeRuns, grouped


def train_page(runs: Sequence[TrainRun], provenance: Provenance) -> str:
    """Write the page of models that were trained by recipes.

    Args:
        runs: At least one, all on the same task.
        provenance: The command and versions that the foot of the page repeats.

    Raises:
        MissingDependencyError: Plotly is not installed.
    """
    first, recipes = runs[0], grouped(runs)
    evidence = [(r.runs[0].recipe, r.evidence) for r in recipes if r.evidence and r.runs[0].recipe != "fp32"]
    result = paragraph(evidence_sentence(evidence)) + _results_plot(recipes)
    result += table("Recipes", TRAIN_COLUMNS, recipes) + glossary(TRAIN_COLUMNS)
    warnings = dict.fromkeys(f"{run.recipe}: {text}" for run in runs for text in run.warnings)
    result += "".join(paragraph(f"warning: {text}") for text in warnings)
    parts = section("Results", result) + section("Losses", _losses_plot(recipes))
    lead = (
        f"{first.task}, {first.steps} steps, seeds {', '.join(map(str, dict.fromkeys(r.seed for r in runs)))}"
    )
    return page("What training in narrow formats costs", lead, parts, provenance)


def _results_plot(recipes: Sequence[RecipeRuns]) -> str:
    metric = METRICS[recipes[0].runs[0].metric]
    rows = [(r.runs[0].recipe, [run.value for run in r.runs]) for r in recipes]
    x = linear_axis(
        f"{metric.title}, {metric.unit}", [v for _, values in rows for v in values], least_span=0.0
    )
    about = (
        f"{metric.title.capitalize()} of each recipe on held-out data: a circle per seed, a dot for the mean."
    )
    return figure("results", strips(rows, x, metric.unit), about=about)


def _losses_plot(recipes: Sequence[RecipeRuns]) -> str:
    drawn = [Curve(r.runs[0].recipe, _losses(r), ()) for r in recipes]
    losses = [loss for curve in drawn for _, loss in curve.points]
    steps = [step for curve in drawn for step, _ in curve.points]
    plot = curves(drawn, linear_axis("steps", steps), log10_axis("loss, nats", losses), floor=min(losses))
    about = "Training loss against steps, mean over seeds."
    return figure("losses", plot, about=about, below=curve_legend([curve.name for curve in drawn]))


def _losses(recipe: RecipeRuns) -> tuple[tuple[float, float], ...]:
    """Return the mean loss over seeds at the end of each group of steps."""
    every, steps = recipe.runs[0].loss_every, recipe.runs[0].steps
    means = [fmean(losses) for losses in zip(*(run.losses for run in recipe.runs), strict=False)]
    points = ((min((i + 1) * every, steps), loss) for i, loss in enumerate(means))
    return tuple((step, loss) for step, loss in points if 0 < loss < math.inf)
