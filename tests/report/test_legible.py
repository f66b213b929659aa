"""Pages can be read on a desktop and on a phone: nothing crosses, nothing is cut, no word is broken."""

import math
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from fewbits.records import Provenance, SolveScore, Stage
from fewbits.report import checkpoint_page, matrices_page, prune_page, solve_page, tasks_page
from fewbits.report.figures import stroke
from tests.report import fake
from tests.report.test_browser import Visit, browser, quiet, visit  # noqa: F401 - a fixture
from tests.report.test_pruning import PRODUCTS, REPORT
from tests.report.test_pruning import model as pruned

ORIGIN = Provenance("fewbits solve " + "a/very/long/path/" * 9, (("python", "3"),), (0,))
FIRST = "fp64", "fp32", "tf32", "fp16", "bf16", "bf16x2", "bf16x3", "int8x2", "int8x3", "dsgesv"
PRECISIONS = (*FIRST, *(f"{name}-classical" for name in FIRST))


def solved() -> list[SolveScore]:
    """Twenty precisions, as of `fewbits solve --compare`; the second leaves a stage, two have one history."""
    scores = []
    for i, name in enumerate(PRECISIONS):
        history = tuple(10.0 ** (-2 - (1 + i % 10) * k / 3 - i / 7) for k in range(3 + i % 10))
        if i == 7:
            history = scores[6].stages[0].history
        stages = (Stage(name, "LU", len(history), 0, 0.1, 0.1, "", history),)
        if i == 1:
            left = Stage(
                "bf16", "LU", -50, 8, 0.5, 0.25, "GMRES stagnated after a while", (1e-3, 1e-4, math.nan)
            )
            stages = (left, *stages)
        scores.append(
            SolveScore("A", 150, name, stages, 3, 1e-16, 1e3, 0.1, 0.5, 1e-15, "|b - A x| / (|A| |x|)")
        )
    return scores


def long_names() -> Any:
    """A pruned model whose tensors are named as those of large models are."""
    names = [
        f"model.language_model.layers.{i}.block_sparse_moe.experts.{i}.down_proj.weight" for i in (3, 17)
    ]
    tensors = tuple(replace(t, tensor=name) for t, name in zip(REPORT.pruned, names, strict=True))
    return replace(pruned(products=PRODUCTS), report=replace(REPORT, pruned=tensors))


PAGES = {
    "tasks": lambda: tasks_page(fake.tasks(), fake.PROVENANCE),
    "checkpoint": lambda: checkpoint_page(fake.checkpoint(), fake.PROVENANCE),
    "matrices": lambda: matrices_page(fake.matrices(), fake.PROVENANCE),
    "solve": lambda: solve_page(solved(), ORIGIN),
    "prune": lambda: prune_page([long_names()], ORIGIN),
    "pruned checkpoint": lambda: prune_page([replace(long_names(), stages=())], ORIGIN),
}
SEEN = [(name, 400) for name in PAGES] + [(name, 1280) for name in ("tasks", "checkpoint", "solve", "prune")]
# Pairs of texts of one plot whose boxes share more than a pixel; slanted names and numbers in cells may.
CROSSING = """() => [...document.querySelectorAll('.plot')].flatMap(plot => {
  const slanted = plot.querySelector('.heatmaplayer') ? '.xtick text' : 'nothing';
  const texts = [...plot.querySelectorAll('svg text')].filter(
    t => t.textContent && !t.closest('.heatmap-label, .hoverlayer, .cbaxis') && !t.matches(slanted));
  const boxes = texts.map(t => t.getBoundingClientRect());
  return boxes.flatMap((a, i) => boxes.slice(0, i).flatMap((b, j) =>
    Math.min(a.right, b.right) - Math.max(a.left, b.left) > 1 &&
    Math.min(a.bottom, b.bottom) - Math.max(a.top, b.top) > 1
      ? [[texts[i].textContent, texts[j].textContent]] : []));
})"""
# Words of tables and legends that stand on two lines. A word ends at a space, a separator or a hyphen.
BROKEN = """() => [...document.querySelectorAll('table td, table th, .curves li')].flatMap(cell => {
  const found = [], walk = document.createTreeWalker(cell, NodeFilter.SHOW_TEXT);
  while (walk.nextNode()) {
    for (const word of walk.currentNode.data.matchAll(/[^\\s._/,:-]+/g)) {
      const range = document.createRange();
      range.setStart(walk.currentNode, word.index);
      range.setEnd(walk.currentNode, word.index + word[0].length);
      if (new Set([...range.getClientRects()].map(r => Math.round(r.top))).size > 1) found.push(word[0]);
    }
  }
  return found;
})"""
CUT = """() => [...document.querySelectorAll('.scroll')].filter(
  s => s.querySelector('table') && s.scrollWidth > s.clientWidth + 1).map(s => s.ariaLabel)"""


@pytest.fixture(scope="module", params=SEEN, ids=str)
def opened(browser: Any, request: Any, tmp_path_factory: Any) -> Iterator[tuple[Visit, int]]:  # noqa: F811
    name, width = request.param
    path: Path = tmp_path_factory.mktemp("legible") / "page.html"
    seen = visit(browser, path, PAGES[name](), viewport={"width": width, "height": 900})
    seen.settle()
    yield seen, width
    seen.page.close()


def test_every_page_has_a_plot_with_something_in_it(opened: tuple[Visit, int]) -> None:
    seen, _ = opened
    assert quiet(seen)
    assert seen.page.locator(".plot .scatterlayer path.point").count() > 1


def test_no_two_texts_of_a_plot_cross(opened: tuple[Visit, int]) -> None:
    assert opened[0].page.evaluate(CROSSING) == []


def test_nothing_is_cut_at_the_side(opened: tuple[Visit, int]) -> None:
    seen, width = opened
    assert seen.page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    cut = seen.page.evaluate(CUT)
    # With a column for each format the table of a checkpoint is wider than a desktop, and is scrolled there.
    assert cut == (["Proposals and QSNR by tensor, largest first"] if width > 600 and cut else [])


def test_no_word_is_broken(opened: tuple[Visit, int]) -> None:
    assert opened[0].page.evaluate(BROKEN) == []


def test_a_card_says_what_each_of_its_numbers_is(browser: Any, tmp_path: Path) -> None:  # noqa: F811
    seen = visit(browser, tmp_path / "p.html", PAGES["prune"](), viewport={"width": 400, "height": 900})
    said = "getComputedStyle(document.querySelector('tbody td:nth-child(3)'), '::before').content"
    assert seen.page.evaluate(said) == '"metric"'
    button = seen.page.locator("table.sortable >> nth=0 >> thead button", has_text="metric")
    button.click()
    assert seen.texts("table.sortable >> nth=0 >> tbody td:nth-child(3)") == ["92.50", "96.50", "96.75"]
    seen.page.close()


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_each_curve_has_a_stroke_of_its_own_and_a_legend_that_shows_it(
    browser: Any,  # noqa: F811
    tmp_path: Path,
    scheme: str,
) -> None:
    seen = visit(browser, tmp_path / "solve.html", PAGES["solve"](), color_scheme=scheme)
    seen.settle()
    strokes = """paths => paths.map(p => {
      const s = getComputedStyle(p);
      return s.stroke + ' ' + s.strokeDasharray.replaceAll('px', '').replaceAll(' ', '').replace('none', '');
    })"""
    drawn = seen.page.locator("#residuals .scatterlayer .lines path").evaluate_all(strokes)
    shown = seen.page.locator(".curves line").evaluate_all(strokes)
    assert len(drawn) == 20  # of 21 histories two are one
    assert len(set(drawn)) == 20
    assert drawn == shown
    names = seen.texts(".curves li")
    assert names[1:3] == ["bf16 of fp32 (left)", "fp32"]
    assert "bf16x3, int8x2" in names
    seen.page.close()


def test_the_first_28_strokes_all_differ() -> None:
    assert len({stroke(i) for i in range(28)}) == 28
