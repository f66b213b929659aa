"""The columns about predicted steps on many ranks, and what their table says in words."""

from __future__ import annotations

from dataclasses import dataclass
from math import nan

from fewbits.records import CodecLimit, PredictedStep, Prediction
from fewbits.report import quantities as q
from fewbits.report.columns.codecs import WIDE, milliseconds
from fewbits.report.columns.column import Column


@dataclass(frozen=True)
class RankedStep:
    """A predicted step beside that of FP32 on as many ranks."""

    step: PredictedStep
    wide: PredictedStep

    @property
    def times_fp32(self) -> float:
        """How much faster than FP32."""
        return self.wide.step_seconds / self.step.step_seconds


SCALE_COLUMNS: list[Column[RankedStep]] = [
    Column("codec", "codec", "What gradients travel in, as --codecs takes it.",
           lambda r: q.visible(r.step.codec), lambda r: r.step.codec, is_name=True),
    Column("ranks", "ranks", "Processes that train together.",
           lambda r: str(r.step.ranks), lambda r: r.step.ranks),
    Column("ms per step", "ms/\nstep", "By the fastest reduction of all: compute, rounding and messages.",
           lambda r: milliseconds(r.step.step_seconds), lambda r: 1e3 * r.step.step_seconds),
    Column("efficiency (%)", "effi-\nciency\n%", "Share of that step that is compute.",
           lambda r: q.percent(r.step.efficiency), lambda r: r.step.efficiency),
    Column("reduction", "reduc-\ntion", "The fastest one: owners, levels, ring, tree or halving.",
           lambda r: r.step.best_reduction, lambda r: r.step.best_reduction, is_name=True),
    Column("codec ms", "codec\nms", "Of that step: rounding, adding and unpacking, on one thread.",
           lambda r: milliseconds(r.step.codec_seconds), lambda r: 1e3 * r.step.codec_seconds, spare=2),
    Column("messages ms", "mess.\nms", "Of that step: messages, those that hide behind compute too.",
           lambda r: milliseconds(r.step.link_seconds), lambda r: 1e3 * r.step.link_seconds, spare=1),
    Column("times fp32", "times\nfp32", "How much faster than fp32 with the fastest reduction.",
           lambda r: f"{r.times_fp32:.2f}", lambda r: r.times_fp32),
    Column("fewbits: ms per step", "fewbits\nms/step", "By the faster one of those that fewbits runs.",
           lambda r: milliseconds(r.step.own_seconds), lambda r: 1e3 * r.step.own_seconds),
    Column("fewbits: reduction", "fewbits\nruns", "Which one that is: owners, or levels on a mesh.",
           lambda r: r.step.own_reduction, lambda r: r.step.own_reduction, is_name=True),
    Column("pays at (Gbit/s)", "pays\nat\nGbit/s",
           "Speeds of links on which it is faster than fp32; all: on all that were tried.",
           lambda r: _speeds(r.step), lambda r: _fastest(r.step)),
]  # fmt: skip
_ALL = 1e-2, 1e4  # speeds in Gbit/s beyond which there is no need to tell


def _speeds(step: PredictedStep) -> str:
    if step.codec == WIDE:
        return "-"
    return ", ".join(_range(low, high) for low, high in step.pays_gigabits) or "none"


def _fastest(step: PredictedStep) -> float:
    """Return the fastest links on which a codec pays, 0 for none; of FP32 itself there is nothing to say."""
    return nan if step.codec == WIDE else max((high for _, high in step.pays_gigabits), default=0.0)


def _range(low: float, high: float) -> str:
    if low < _ALL[0]:
        return "all" if high > _ALL[1] else f"<{high:.3g}"
    return f">{low:.3g}" if high > _ALL[1] else f"{low:.3g}-{high:.3g}"


def ranked(prediction: Prediction) -> list[RankedStep]:
    """Return the rows, each with FP32's of as many ranks."""
    wide = {step.ranks: step for step in prediction.steps if step.codec == WIDE}
    return [RankedStep(step, wide[step.ranks]) for step in prediction.steps]


def about_prediction(prediction: Prediction) -> str:
    """Say that it is a prediction, and what from."""
    p = prediction
    nodes = ""
    if p.inner_gigabits is not None:
        nodes = f", {p.per_node} ranks in a node with {p.inner_gigabits:g} Gbit/s each within it"
    hidden = f"messages hide behind {q.percent(p.overlap)} % of the compute" if p.overlap else "none hidden"
    return (
        "A prediction: nothing was trained and nothing was sent. From"
        f" {milliseconds(p.compute_seconds)} ms of compute in a step, one exchange of"
        f" {p.parameters} values, links of {p.gigabits:g} Gbit/s{nodes}, {p.latency_us:g} us for each"
        f" message, {hidden}; and from the rates at which one thread rounds, adds and unpacks,"
        f" {q.visible(p.rates_from)}."
    )


def limit_sentence(limit: CodecLimit, prediction: Prediction) -> str:
    """Say on how many ranks a codec pays."""
    least, most = prediction.tried_ranks
    tried = f"{least} to {most} that were tried, twice as many each time"
    if limit.pays_ranks == ((least, most),):
        said = f"faster than fp32 on all numbers of ranks, {tried}"
    elif limit.pays_ranks:
        runs = [str(a) if a == b else f"{a} to {b}" for a, b in limit.pays_ranks]
        said = f"faster than fp32 on {', '.join(runs)} ranks, and on no others of {tried}"
    else:
        said = f"faster than fp32 on no number of ranks, of {tried}"
    return f"{q.visible(limit.codec)}: {said}."
