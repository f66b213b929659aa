"""The page of a benchmark: times to quality, and the quality of every run over time."""

from __future__ import annotations

from fewbits.records import BenchmarkReport, Provenance
from fewbits.report import quantities as q
from fewbits.report.columns.benchmark import BENCHMARK_COLUMNS, benchmark_sentences, ranked_results
from fewbits.report.judgement import metric_named
from fewbits.report.page.axes import linear_axis
from fewbits.report.page.figures import Curve, Dot, Series, curves, dots
from fewbits.report.page.markup import Block, Paragraph, Plot, Section, Sign, Table, curve_signs, page

_SIGNS = (Sign("result by the rules"), Sign("run that reached the target", "muted", "circle"))


def benchmark_page(report: BenchmarkReport, provenance: Provenance) -> str:
    """Write the page of a benchmark.

    Args:
        report: All recipes and runs.
        provenance: The command and versions that the foot of the page repeats.

    Raises:
        MissingDependencyError: Plotly or Jinja2 is not installed.
    """
    results: list[Block] = [
        _times_plot(report),
        Table("Recipes", BENCHMARK_COLUMNS, ranked_results(report)),
        *map(Paragraph, benchmark_sentences(report)),
    ]
    sections = [Section("Results", results), Section("Runs", [_runs_plot(report)])]
    lead = f"{report.benchmark}: seconds until {report.metric} reaches {report.target:g}."
    return page("Time to quality", lead, sections, provenance)


def _times_plot(report: BenchmarkReport) -> Plot:
    runs = [
        Dot(i, run.seconds, (f"seed {run.seed}: {run.seconds:.2f} s, {run.steps} steps",))
        for i, result in enumerate(report.recipes)
        for run in result.runs
        if run.reached
    ]
    means = [Dot(i, r.seconds, (f"result: {r.seconds:.2f} s",)) for i, r in enumerate(report.recipes)]
    figure = dots(
        [r.recipe for r in report.recipes],
        [Series(runs, "muted", "circle-open"), Series(means)],
        linear_axis("seconds").reversed(),
    )
    return Plot("times", "Seconds to quality", figure, "Right is better.", _SIGNS)


def _runs_plot(report: BenchmarkReport) -> Plot:
    metric = metric_named(report.metric, lower_is_better=report.lower_is_better)
    drawn = [
        Curve(
            f"{result.recipe}, seed {run.seed}",
            tuple((e.seconds, e.value) for e in run.evaluations),
            tuple(
                f"{e.seconds:.2f} s, step {e.step}: {q.plain(e.value, metric.digits)}"
                for e in run.evaluations
            ),
            alike=i,
        )
        for i, result in enumerate(report.recipes)
        for run in result.runs
    ]
    vertical = linear_axis(metric.unit or report.metric)
    figure = curves(drawn, linear_axis("seconds"), vertical, reference=report.target)
    about = "Each run until its target, the dotted line, or its last step; runs of one recipe look alike."
    names = [result.recipe for result in report.recipes]
    return Plot("quality", q.capital(metric.title), figure, about, curve_signs(names))
