"""The page of trained models: how good they are, their losses on the way, and what they take."""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import fmean

from fewbits.records import Provenance, TrainRun
from fewbits.report import quantities as q
from fewbits.report.columns.training import TRAIN_COLUMNS, sent_sentences
from fewbits.report.judgement import evidence_sentence, metric_named
from fewbits.report.page.axes import linear_axis, log_axis
from fewbits.report.page.differences import Compared, differences_plot
from fewbits.report.page.figures import Bars, Curve, Dot, Series, bars, curves, dots
from fewbits.report.page.markup import Block, Paragraph, Plot, Section, Sign, Table, curve_signs, page
from fewbits.report.recipe_runs import RecipeRuns, grouped


def train_page(runs: Sequence[TrainRun], provenance: Provenance) -> str:
    """Write the page of models that were trained by recipes.

    Args:
        runs: At least one, all on the same task.
        provenance: The command and versions that the foot of the page repeats.

    Raises:
        MissingDependencyError: Plotly or Jinja2 is not installed.
    """
    first, recipes = runs[0], grouped(runs)
    metric = metric_named(first.metric, lower_is_better=first.lower_is_better)
    better = "higher" if metric.higher_is_better else "lower"
    evidence = [(r.runs[0].recipe, r.evidence) for r in recipes if r.evidence and r.runs[0].recipe != "fp32"]
    warnings = dict.fromkeys(f"warning: {run.recipe}: {text}" for run in runs for text in run.warnings)
    results: list[Block] = [
        Paragraph(f"{q.capital(metric.heading)}, on held-out data; {better} is better."),
        Paragraph(evidence_sentence(evidence)),
        *_results_plot(recipes),
        Table("Recipes", TRAIN_COLUMNS, recipes),
        *map(Paragraph, [*sent_sentences(runs), *warnings]),
    ]
    parts = [Section("Results", results)]
    drawn = [curve for recipe in recipes if (curve := _curve(recipe)).points]
    if drawn:
        parts.append(Section("Losses", [_losses_plot(drawn, many=len({r.seed for r in runs}) > 1)]))
    parts.append(Section("Memory", [_memory_plot(recipes)]))
    lead = f"{first.task}, {first.steps} steps."
    return page("What training in narrow formats saves and costs", lead, parts, provenance)


def _results_plot(recipes: Sequence[RecipeRuns]) -> list[Plot]:
    """Return the differences from fp32 where it was trained too, else the results themselves."""
    first = recipes[0].runs[0]
    metric = metric_named(first.metric, lower_is_better=first.lower_is_better)
    compared = [
        Compared(r.runs[0].recipe, r.evidence, r.differences)
        for r in recipes
        if r.evidence and r.runs[0].recipe != "fp32"
    ]
    if compared:
        return differences_plot("results", compared, metric, "fp32")
    seeds = [
        Dot(i, run.value, (f"seed {run.seed}: {q.plain(run.value, metric.digits)}",))
        for i, recipe in enumerate(recipes)
        for run in recipe.runs
    ]
    axis = linear_axis(metric.unit)
    figure = dots(
        [recipe.runs[0].recipe for recipe in recipes],
        [Series(seeds)],
        axis if metric.higher_is_better else axis.reversed(),
    )
    about = "On held-out data, a dot for each seed; right is better."
    return [Plot("results", q.capital(metric.title), figure, about)]


def _losses_plot(drawn: Sequence[Curve], *, many: bool) -> Plot:
    y = log_axis("loss, nats", [v for curve in drawn for _, v in curve.points])
    figure = curves(drawn, linear_axis("steps"), y)
    about = "Training loss, each point a mean of some steps."
    about += " Lines are means over seeds, bands reach from the lowest to the highest." if many else ""
    return Plot("losses", "Loss on the way", figure, about, curve_signs([curve.name for curve in drawn]))


def _curve(recipe: RecipeRuns) -> Curve:
    """Return the mean loss over seeds against steps, and its range where there are several seeds."""
    every, steps = recipe.runs[0].loss_every, recipe.runs[0].steps
    losses = list(zip(*(run.losses for run in recipe.runs), strict=False))
    points = [
        (min((i + 1) * every, steps), values)
        for i, values in enumerate(losses)
        if all(0 < v < math.inf for v in values)
    ]
    return Curve(
        recipe.runs[0].recipe,
        tuple((step, fmean(values)) for step, values in points),
        tuple(f"step {step}, loss {q.plain(fmean(values), 4)}" for step, values in points),
        tuple((min(values), max(values)) for _, values in points) if len(recipe.runs) > 1 else (),
    )


def _memory_plot(recipes: Sequence[RecipeRuns]) -> Plot:
    part = Bars("bytes per value", [r.runs[0].bytes_per_value for r in recipes], "accent")
    figure = bars([r.runs[0].recipe for r in recipes], [part], linear_axis("bytes"))
    about = "Parameters, gradients and optimizer states as they lie in memory."
    return Plot("memory", "Bytes per value of the model", figure, about, [Sign(part.title, symbol="bar")])
