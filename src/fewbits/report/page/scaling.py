"""The page of predicted steps on many ranks."""

from __future__ import annotations

from collections.abc import Callable

from fewbits.records import PredictedStep, Prediction, Provenance
from fewbits.report import quantities as q
from fewbits.report.columns.codecs import milliseconds
from fewbits.report.columns.scaling import SCALE_COLUMNS, about_prediction, limit_sentence, ranked
from fewbits.report.page.axes import linear_axis, log_axis
from fewbits.report.page.figures import Curve, curves
from fewbits.report.page.markup import Block, Paragraph, Plot, Section, Table, curve_signs, page


def scale_page(prediction: Prediction, provenance: Provenance) -> str:
    """Write the page of a prediction: efficiency and time against ranks, and where codecs stop paying.

    Args:
        prediction: What is shown.
        provenance: The command and versions that the foot of the page repeats.

    Raises:
        MissingDependencyError: Plotly or Jinja2 is not installed.
    """
    blocks: list[Block] = [
        Paragraph(about_prediction(prediction)),
        *(Paragraph(limit_sentence(limit, prediction)) for limit in prediction.limits),
        _plot(
            "efficiency", "Predicted efficiency", "% compute", prediction,
            lambda s: 100 * s.efficiency, lambda s: f"{q.percent(s.efficiency)} %",
        ),
        _plot(
            "times", "Predicted time of a step", "ms per step", prediction,
            lambda s: 1e3 * s.step_seconds, lambda s: f"{milliseconds(s.step_seconds)} ms",
        ),
        Table("Predicted steps", SCALE_COLUMNS, ranked(prediction)),
    ]  # fmt: skip
    lead = "A prediction from a model of the network and measured rates of codecs: nothing here was run."
    return page("Steps on many ranks, predicted", lead, [Section("Prediction", blocks)], provenance)


def _plot(
    identity: str,
    title: str,
    unit: str,
    prediction: Prediction,
    value: Callable[[PredictedStep], float],
    written: Callable[[PredictedStep], str],
) -> Plot:
    drawn = []
    for codec in dict.fromkeys(step.codec for step in prediction.steps):
        steps = sorted((s for s in prediction.steps if s.codec == codec), key=lambda s: s.ranks)
        drawn.append(
            Curve(
                codec,
                tuple((s.ranks, value(s)) for s in steps),
                tuple(f"{s.ranks} ranks, {s.best_reduction}: {written(s)}" for s in steps),
            )
        )
    values = [v for curve in drawn for _, v in curve.points]
    vertical = log_axis(unit, values) if identity == "times" else linear_axis(unit)
    figure = curves(drawn, log_axis("ranks", [s.ranks for s in prediction.steps]), vertical)
    better = "lower" if identity == "times" else "higher"
    about = f"By the fastest reduction for each number of ranks; {better} is better."
    return Plot(identity, title, figure, about, curve_signs([curve.name for curve in drawn]))
