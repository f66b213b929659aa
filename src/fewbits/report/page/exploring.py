"""The pages of a design space of formats, and of the best format within a budget."""

from __future__ import annotations

import math

from fewbits.fronts import pareto_front
from fewbits.records import Exploration, ExploredFormat, Finalist, FormatChoice, Provenance
from fewbits.report import quantities as q
from fewbits.report.columns.exploring import (
    BEST_COLUMNS,
    FINALIST_COLUMNS,
    PLACED_COLUMNS,
    SENSITIVITY_COLUMNS,
    SENSITIVITY_SENTENCE,
    about_choice,
    about_exploration,
    best_within,
    bound_sentence,
    proxy,
    winner_sentence,
    written,
)
from fewbits.report.page.axes import Axis, linear_axis, log_axis
from fewbits.report.page.figures import COLOURS, Dot, Series, dots
from fewbits.report.page.front import not_drawn
from fewbits.report.page.markup import Block, Filter, Paragraph, Plot, Section, Sign, Table, page
from fewbits.report.page.scatter import Cloud, Point, scatter

_FIRST, _LAST = 3, 9  # bits per value between which every whole bit is a choice of its own
_BITS = (f"below {_FIRST}", *(f"{n} to {n + 1}" for n in range(_FIRST, _LAST)), f"{_LAST} and more")


def explore_page(exploration: Exploration, provenance: Provenance) -> str:
    """Write the page of a design space: QSNR against bits and against the proxy, and the tables.

    Args:
        exploration: What is shown.
        provenance: The command and versions that the foot of the page repeats.

    Raises:
        MissingDependencyError: Plotly or Jinja2 is not installed.
    """
    blocks: list[Block] = [
        Paragraph(about_exploration(exploration)),
        Paragraph(bound_sentence(exploration)),
        _plane("bits", "QSNR by bits per value", exploration),
        _plane("proxy", "QSNR by the area-memory proxy", exploration),
        Table("Named formats beside the Pareto fronts", PLACED_COLUMNS, exploration.placed),
        Table("Best formats within every half bit", BEST_COLUMNS, best_within(exploration)),
        Paragraph(SENSITIVITY_SENTENCE),
        Table("What the front of BDR loses", SENSITIVITY_COLUMNS, exploration.sensitivity),
    ]
    lead = "Every format of a design space, measured on the same vectors."
    return page("The design space of formats", lead, [Section(exploration.data.name, blocks)], provenance)


def choice_page(choice: FormatChoice, provenance: Provenance) -> str:
    """Write the page of the best format within a budget: both QSNRs of each finalist, and the winner.

    Args:
        choice: What is shown.
        provenance: The command and versions that the foot of the page repeats.

    Raises:
        MissingDependencyError: Plotly or Jinja2 is not installed.
    """
    finalists = choice.finalists
    drawn = [f for f in finalists if math.isfinite(f.held_out_db)]
    held_out = [Dot(i, f.held_out_db, _both(f)) for i, f in enumerate(drawn)]
    chosen_on = [Dot(i, f.format.qsnr_db, _both(f)) for i, f in enumerate(drawn)]
    series = [Series(chosen_on, "muted", "circle-open"), Series(held_out)]
    names = [f"{written(f.format.format)}, {q.bits(f.format.bits_per_value)}" for f in drawn]
    about = "Each finalist with its bits per value; right is better, and the held-out half decides. "
    about += not_drawn([written(f.format.format) for f in finalists if f not in drawn])
    unmarked = [written(f.format.format) for f in drawn if not math.isfinite(f.format.qsnr_db)]
    if unmarked:
        about += f" Without a finite value on the half that chose, and no mark of it: {', '.join(unmarked)}."
    signs = Sign("on the held-out half"), Sign("on the half it was chosen on", "muted", "circle")
    blocks: list[Block] = [
        Paragraph(about_choice(choice)),
        Paragraph(f"{winner_sentence(choice)} {choice.winner}", "finding"),
        Plot(
            "finalists", "QSNR of the finalists", dots(names, series, linear_axis("QSNR, dB")), about, signs
        ),
        Table("Finalists", FINALIST_COLUMNS, finalists),
    ]
    title = f"The best format of at most {choice.budget:g} bits per value"
    return page(title, "Chosen on one half of the data, judged on the other.",
                [Section(choice.data.name, blocks)], provenance)  # fmt: skip


def _both(finalist: Finalist) -> tuple[str, str]:
    return f"held out: {finalist.held_out_db:.2f} dB", f"chosen on: {finalist.format.qsnr_db:.2f} dB"


def _plane(cost: str, title: str, exploration: Exploration) -> Plot:
    """Return the plot of all formats over one cost, with filters by family, scale and bits."""
    formats = [f for f in exploration.formats if math.isfinite(f.qsnr_db)]
    families = sorted({f.family for f in exploration.formats})
    scales = sorted({f.scale for f in exploration.formats})

    def at(format: ExploredFormat) -> float:
        return format.bits_per_value if cost == "bits" else format.proxy

    def point(format: ExploredFormat, *facets: int) -> Point:
        return Point(written(format.format), at(format), format.qsnr_db, _hover(format), facets)

    def facets(format: ExploredFormat) -> tuple[int, int, int]:
        bits = min(max(math.floor(format.bits_per_value), _FIRST - 1), _LAST) - _FIRST + 1
        return families.index(format.family), scales.index(format.scale), bits

    clouds = [
        Cloud([point(f, *facets(f)) for f in formats if f.family == family], f"curve-{i % COLOURS}")
        for i, family in enumerate(families)
    ]
    placed = [p.format for p in exploration.placed if math.isfinite(p.format.qsnr_db)]
    marked = Cloud([point(f) for f in placed], "text", "diamond", 10)
    points = [(at(f), f.qsnr_db) for f in formats]
    front = [points[i] for i in pareto_front(points)]
    axis: Axis = linear_axis("bits per value") if cost == "bits" else log_axis("proxy", map(at, formats))
    lost = len(exploration.formats) - len(formats)
    about = (
        "Every point is a format; point at one for its name. The line is the Pareto front of the formats that"
        " are shown: up and left is better."
    )
    about += f" Formats without a finite QSNR, and so not drawn: {lost}." if lost else ""
    signs = [Sign(family, f"curve-{i % COLOURS}") for i, family in enumerate(families)]
    signs += [
        Sign("named formats", "text", "diamond"),
        Sign("Pareto front of what is shown", "accent", "line"),
    ]
    filters = Filter("elements", families), Filter("scales", scales), Filter("bits per value", _BITS)
    return Plot(
        cost, title, scatter(clouds, front, marked, axis, linear_axis("QSNR, dB")), about, signs, (), filters
    )


def _hover(format: ExploredFormat) -> tuple[str, ...]:
    bound = () if math.isnan(format.bound_db) else (f"bound of theorem 1: {format.bound_db:.1f} dB",)
    return (
        f"QSNR: {format.qsnr_db:.2f} dB",
        f"{q.bits(format.bits_per_value)} bits per value, proxy {proxy(format.proxy)}",
        f"scales: {format.scale}",
        *bound,
    )
