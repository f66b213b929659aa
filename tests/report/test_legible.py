"""Pages can be read on a desktop and on a phone: no text crosses another, none is cut, no word is broken."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from fewbits import report
from fewbits.report.page.figures import stroke
from tests.report.pages import PAGES
from tests.report.test_browser import Browser, Visit, browser, quiet, visit  # noqa: F401 - a fixture

WIDTHS = (1440, 390)
LEGIBLE = (Path(__file__).parent / "legible.js").read_text(encoding="utf-8")
# Texts that are scrolled to, in a frame of their own.
CUT = """() => [...document.querySelectorAll('.scroll')].filter(
  s => s.querySelector('table') && s.scrollWidth > s.clientWidth + 1).map(s => s.ariaLabel)"""


@pytest.fixture(scope="module", params=[(name, width) for name in PAGES for width in WIDTHS], ids=str)
def opened(browser: Browser, request: Any) -> Iterator[tuple[Visit, int]]:  # noqa: F811
    name, width = request.param
    seen = visit(browser, PAGES[name](), width=width)
    seen.settle()
    yield seen, width
    seen.close()


def test_every_kind_of_page_is_among_them() -> None:
    pages = {name.removesuffix("_page") for name in report.__all__ if name.endswith("_page")}
    assert pages == {name.split()[0] for name in PAGES}


def test_every_page_has_a_plot_with_something_in_it(opened: tuple[Visit, int]) -> None:
    seen, _ = opened
    assert quiet(seen)
    assert seen.page.locator(".plot .scatterlayer path.point").count() >= 1


def test_nothing_is_cut_at_the_side(opened: tuple[Visit, int]) -> None:
    seen, width = opened
    assert seen.page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    cut = seen.page.evaluate(CUT)
    # With a column for each format the table of a checkpoint is wider than a desktop, and is scrolled there.
    assert cut == (["Proposals and QSNR by tensor, largest first"] if width > 600 and cut else [])


def test_no_two_texts_cross_and_no_word_is_broken(opened: tuple[Visit, int]) -> None:
    read = opened[0].page.evaluate(LEGIBLE)
    assert read["texts"] > 40
    assert read["crossing"] == []
    assert read["broken"] == []


CROSSED = {
    "a tick over another": """() => {
      const [a, b] = document.querySelectorAll('#results .ytick text');
      b.replaceWith(Object.assign(a.cloneNode(true), { textContent: 'another' })); }""",
    "a name over a cell": """() => {
      const cell = document.querySelector('tbody th span'), at = cell.getBoundingClientRect();
      document.body.insertAdjacentHTML('beforeend', `<b style="position: absolute; left: ${at.x}px; ` +
        `top: ${at.y + scrollY}px">name</b>`); }""",
    "a slanted text over a title": """() => {
      const title = document.querySelector('#results .xtitle'), at = title.getBBox();
      const text = title.cloneNode(true); text.textContent = 'slanted';
      text.setAttribute('transform', `rotate(-40 ${at.x + at.width / 2} ${at.y})`); title.after(text); }""",
}


@pytest.mark.parametrize("crossed", CROSSED)
def test_texts_that_do_cross_are_seen(browser: Browser, crossed: str) -> None:  # noqa: F811
    seen = visit(browser, PAGES["train"](), width=390)
    seen.settle()
    assert seen.page.evaluate(LEGIBLE)["crossing"] == []
    seen.page.evaluate(CROSSED[crossed])
    assert seen.page.evaluate(LEGIBLE)["crossing"] != []
    seen.close()


def test_a_broken_word_is_seen(browser: Browser) -> None:  # noqa: F811
    seen = visit(browser, PAGES["train"](), width=390)
    seen.settle()
    seen.page.add_style_tag(content="tbody th span { word-break: break-all; width: 3em; display: block }")
    assert "muppet" in seen.page.evaluate(LEGIBLE)["broken"]
    lines = "document.querySelector('#results .ytick tspan.line').textContent = 'mxfp6:gradient=mx'"
    seen.page.evaluate(lines)
    assert any("|" in word for word in seen.page.evaluate(LEGIBLE)["broken"])
    seen.close()


def test_a_card_says_what_each_of_its_numbers_is(browser: Browser) -> None:  # noqa: F811
    seen = visit(browser, PAGES["prune"](), width=400)
    said = "getComputedStyle(document.querySelector('tbody td:nth-child(3)'), '::before').content"
    assert seen.page.evaluate(said) == '"metric"'
    button = seen.page.locator("table.sortable >> nth=0 >> thead button", has_text="metric")
    button.click()
    assert seen.texts("table.sortable >> nth=0 >> tbody td:nth-child(3)") == ["92.50", "96.50", "96.75"]
    seen.close()


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_each_curve_has_a_stroke_of_its_own_and_a_legend_that_shows_it(
    browser: Browser,  # noqa: F811
    scheme: str,
) -> None:
    seen = visit(browser, PAGES["solve"](), scheme=scheme)
    seen.settle()
    strokes = """paths => paths.map(p => {
      const s = getComputedStyle(p);
      return s.stroke + ' ' + s.strokeDasharray.replaceAll('px', '').replaceAll(' ', '').replace('none', '');
    })"""
    drawn = seen.page.locator("#residuals .scatterlayer .lines path").evaluate_all(strokes)
    shown = seen.page.locator("figure:has(#residuals) .signs line").evaluate_all(strokes)
    assert drawn.pop() not in drawn  # the residual that is asked for
    assert len(drawn) == 20  # of 21 histories two are one
    assert len(set(drawn)) == 20
    assert drawn == shown
    names = seen.texts("figure:has(#residuals) .signs li")
    assert names[1:3] == ["bf16 of fp32 (left)", "fp32"]
    assert "bf16x3, int8x2" in names
    seen.close()


def test_the_first_28_strokes_all_differ() -> None:
    assert len({stroke(i) for i in range(28)}) == 28
