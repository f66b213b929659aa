"""A page and its parts: what each holds. How it looks is in the templates of the folder ``templates``."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import TYPE_CHECKING, ClassVar, Generic, Protocol, TypeVar

from fewbits.errors import MissingDependencyError
from fewbits.records import Provenance
from fewbits.report.columns.column import Column
from fewbits.report.page.axes import Figure
from fewbits.report.page.figures import stroke
from fewbits.report.quantities import pieces, visible

if TYPE_CHECKING:
    from jinja2 import Environment

Row = TypeVar("Row")

# The page may run its inline script and style and draw its own images; the browser refuses everything else.
_POLICY = (
    "default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; img-src data: blob:; "
    "base-uri 'none'; form-action 'none'"
)


@dataclass(frozen=True)
class Paragraph:
    """Plain text; "" writes nothing."""

    template: ClassVar[str] = "paragraph.html.jinja"
    text: str
    style: str = ""  # a class of the style sheet


@dataclass(frozen=True)
class Sign:
    """An entry of a plot's legend."""

    name: str
    color: str = "accent"
    symbol: str = "dot"  # dot, circle, diamond, bar or line
    dash: str = ""  # of a line


@dataclass(frozen=True)
class Filter:
    """Boxes to tick: points with a choice that is not ticked are hidden."""

    title: str
    choices: Sequence[str]


@dataclass(frozen=True)
class Plot:
    """A plot between its title and a sentence about it."""

    template: ClassVar[str] = "plot.html.jinja"
    identity: (
        str  # id of the element: given, not drawn at random, so that the same records give the same page
    )
    title: str
    figure: Figure
    about: str
    legend: Sequence[Sign] = ()
    choices: Sequence[str] = ()  # names of the layers of a heat map, to choose from
    filters: Sequence[Filter] = ()  # of points, in the order of their facets


@dataclass(frozen=True)
class Table(Generic[Row]):
    """A table whose headers sort it, and what they mean."""

    template: ClassVar[str] = "table.html.jinja"
    caption: str
    columns: Sequence[Column[Row]]
    rows: Sequence[Row]
    explained: Sequence[Column[Row]] | None = None  # the columns whose meaning is listed; None: all

    def kind(self, column: Column[Row]) -> str:
        """Return "text" or "number", by which the column sorts."""
        return "text" if self.rows and isinstance(column.order(self.rows[0]), str) else "number"

    def value(self, column: Column[Row], row: Row) -> str:
        """Return what a cell sorts by, "" where it has no value."""
        order = column.order(row)
        if isinstance(order, str):
            return order
        # A script reads "Infinity" as a number and Python's "inf" not.
        return "" if math.isnan(order) else repr(float(order)).replace("inf", "Infinity")

    def is_long(self, column: Column[Row], row: Row) -> bool:
        """Whether a cell is given more than its share of the width."""
        order = column.order(row)
        return isinstance(order, str) and len(order) > (40 if column is self.columns[0] else 30)


@dataclass(frozen=True)
class Commands:
    """The command line that measures each row of a table again, as (row, command)."""

    template: ClassVar[str] = "commands.html.jinja"
    lines: Sequence[tuple[str, str]]


class Block(Protocol):
    """What a section is made of; the template is handed it under the name ``block``."""

    template: ClassVar[str]


@dataclass(frozen=True)
class Section:
    """A part of a page under its heading."""

    title: str
    blocks: Sequence[Block]


def curve_signs(names: Sequence[str]) -> list[Sign]:
    """Return the legend of curves: which line is whose."""
    return [Sign(name, stroke(i)[0], "line", stroke(i)[1]) for i, name in enumerate(names)]


def page(title: str, lead: str, sections: Sequence[Section], provenance: Provenance) -> str:
    """Write the document: one file with its style and scripts, which asks nothing of any network.

    Raises:
        MissingDependencyError: Jinja2, which fills the templates, or Plotly, which draws, is not installed.
    """
    plotly = plotly_script()
    folder = files("fewbits.report.page") / "templates"
    style, script = ((folder / name).read_text(encoding="utf-8") for name in ("page.css", "page.js"))
    return _environment().get_template("page.html.jinja").render(
        title=title, lead=lead, sections=sections, provenance=provenance,
        policy=_POLICY, style=style, script=script, plotly=plotly,
    )  # fmt: skip


@cache
def _environment() -> Environment:
    try:
        from jinja2 import Environment, PackageLoader, StrictUndefined
    except ImportError as error:
        raise _missing("Jinja2, which fills its templates,") from error
    environment = Environment(
        loader=PackageLoader("fewbits.report.page", "templates"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        finalize=_visible,
    )
    environment.filters["breakable"] = _breakable
    environment.policies["json.dumps_kwargs"] = {"allow_nan": False, "separators": (",", ":")}
    return environment


def _visible(value: object) -> object:
    """Make every character of a text show; markup of the templates and scripts stays as it is."""
    return visible(value) if isinstance(value, str) and not hasattr(value, "__html__") else value


def _breakable(text: str) -> str:
    """Escape a text that may be broken where its words end, and within a word where that is monstrous."""
    from markupsafe import Markup

    # After a space a line may end anyhow.
    return (
        Markup("")
        .join(Markup("{}" if piece[-1:].isspace() else "{}<wbr>").format(piece) for piece in pieces(text))
        .removesuffix("<wbr>")
    )


def check_plots() -> None:
    """Raise MissingDependencyError if Plotly or Jinja2, which pages need, is not installed."""
    plotly_script()
    _environment()


def plotly_script() -> str:
    """Read the script that draws the plots, some five megabytes, from the Plotly that is installed.

    Raises:
        MissingDependencyError: Plotly is not installed.
    """
    try:
        from plotly.offline import get_plotlyjs
    except ImportError as error:
        raise _missing("Plotly, which draws its plots,") from error
    return str(get_plotlyjs())


def _missing(library: str) -> MissingDependencyError:
    return MissingDependencyError(
        f"an HTML report was asked for, and {library} is not installed: run pip install 'fewbits[plots]'"
    )
