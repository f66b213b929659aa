"""The pages in a real browser: they draw, they sort, they stay offline, and names in them stay text."""

import shutil
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest

from fewbits.report import checkpoint_page, matrices_page, tasks_page
from tests.report import fake

playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
pytest.importorskip("plotly", reason="plotly (fewbits[plots]) is not installed")

NAMES = ("chromium", "chromium-browser", "google-chrome")
ARGUMENTS = [
    "--no-sandbox",
    "--disable-gpu",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]
PLOTS_AT = 6000  # the line of their script; the longest page has a third before it
HOSTILE = "</script><script>window.stolen = 1</script><img src=x onerror='window.stolen = 1'>"


@dataclass
class Browser:
    """A browser, the file of each page it opens, and its tabs whose page nobody looks at any more.

    A tab that ran the script of the plots, five megabytes, still has it compiled for the next page that
    brings it at the same address in the same line, which loads in a fifth of the time.
    """

    running: Any
    file: Path
    idle: list[Any] = field(default_factory=list)


@dataclass
class Visit:
    """An open page and everything it did that it should not."""

    page: Any
    browser: Browser
    requests: list[str] = field(default_factory=list)
    complaints: list[str] = field(default_factory=list)

    def texts(self, selector: str) -> list[str]:
        return [str(text).strip() for text in self.page.locator(selector).all_text_contents()]

    def settle(self, times: int = 1) -> None:
        """Wait until every plot was drawn and labelled as often as that."""
        drawn = "n => [...document.querySelectorAll('.plot')].every(p => Number(p.dataset.drawn || 0) >= n)"
        self.page.wait_for_function(drawn, arg=times)

    def listen(self, listened: bool = True) -> None:
        """Note from now on what the page does, or no longer."""
        change = self.page.on if listened else self.page.remove_listener
        change("request", self._requested)
        change("console", self._said)
        change("pageerror", self._failed)

    def close(self) -> None:
        """Leave the tab to the next page."""
        self.listen(False)
        self.browser.idle.append(self.page)

    def _requested(self, request: Any) -> None:
        self.requests.append(request.url)

    def _said(self, message: Any) -> None:
        self.complaints.append(message.text)

    def _failed(self, error: Any) -> None:
        self.complaints.append(str(error))


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    path = next(filter(None, map(shutil.which, NAMES)), None)
    if path is None:
        pytest.skip(f"no browser is installed: none of {', '.join(NAMES)}")
    with playwright.sync_playwright() as started:
        running = started.chromium.launch(executable_path=path, args=ARGUMENTS)
        yield Browser(running, tmp_path_factory.mktemp("browser") / "page.html")
        running.close()


def visit(
    browser: Browser, text: str, *, width: int = 1280, height: int = 900, scheme: str = "light"
) -> Visit:
    before, plots, after = text.partition("<script>\n/**\n* plotly.js")
    blank = "\n" * (PLOTS_AT - before.count("\n"))
    browser.file.write_text(before + blank + plots + after, encoding="utf-8")
    seen = Visit(browser.idle.pop() if browser.idle else browser.running.new_page(), browser)
    seen.page.set_viewport_size({"width": width, "height": height})
    seen.page.emulate_media(color_scheme=scheme)
    seen.listen()
    seen.page.goto(browser.file.as_uri())
    return seen


@pytest.fixture(scope="module")
def tasks(browser: Browser) -> Iterator[Visit]:
    text = tasks_page(fake.tasks(), fake.PROVENANCE)
    seen = visit(browser, text)
    seen.settle()
    yield seen
    seen.close()


def quiet(seen: Visit) -> bool:
    assert seen.complaints == []
    assert [url for url in seen.requests if not url.startswith("file://")] == []
    return True


def test_the_page_of_tasks_draws_its_points_and_asks_nothing_of_a_network(tasks: Visit) -> None:
    assert quiet(tasks)
    for plot in ("formats-0", "formats-1"):
        assert tasks.page.locator(f"#{plot} svg.main-svg .scatterlayer .points path.point").count() == 13
        assert tasks.page.locator(f"#{plot} .scatterlayer .lines path").count() == 2  # FP32 and the front
    assert tasks.page.locator("#layers-0 .heatmaplayer image").count() >= 1


def test_a_page_that_did_ask_would_be_caught(browser: Browser) -> None:
    text = tasks_page(fake.tasks()[:1], fake.PROVENANCE)
    bad = text.replace("</main>", '<img src="http://127.0.0.1:9/pixel.png"></main>')
    assert bad != text
    seen = visit(browser, bad)
    assert any("Content Security Policy" in complaint for complaint in seen.complaints)
    seen.page.close()  # no other page is to hear of its requests
    open_to_all = bad.replace('http-equiv="Content-Security-Policy"', 'name="nothing"')
    seen = visit(browser, open_to_all)
    assert "http://127.0.0.1:9/pixel.png" in seen.requests
    seen.page.close()


def test_a_click_on_a_header_sorts_and_a_second_one_reverses(tasks: Visit) -> None:
    table = tasks.page.locator("table.sortable").first
    head = table.locator("thead th", has_text="weight QSNR")
    cells = "table.sortable >> nth=0 >> tbody tr td:nth-child(7)"
    head.locator("button").click()
    rising = tasks.texts(cells)
    assert head.get_attribute("aria-sort") == "ascending"
    assert rising[0] == "15.1"
    assert rising[-1] == "exact"
    numbers = [float(text) for text in rising[:-1]]
    assert numbers == sorted(numbers)
    head.locator("button").click()
    assert head.get_attribute("aria-sort") == "descending"
    assert tasks.texts(cells) == list(reversed(rising))


def test_headers_sort_from_the_keyboard_text_too_and_missing_values_stay_last(tasks: Visit) -> None:
    table = tasks.page.locator("table.sortable").nth(1)
    rows = "table.sortable >> nth=1 >> tbody tr th"
    table.locator("thead button").first.focus()
    tasks.page.keyboard.press("Enter")
    names = tasks.texts(rows)
    assert names[:4] == ["bf16", "fp8_e4m3", "fp16", "fp32"]  # digits sort by value: 8 before 16
    assert sorted(names) == sorted(name for name, *_ in fake.FORMATS)
    proxy = table.locator("thead button", has_text="proxy")
    for _ in range(2):
        proxy.click()
        assert tasks.texts(rows)[-1] == "fp32"
    marked = table.locator("thead th").evaluate_all("heads => heads.map(h => h.getAttribute('aria-sort'))")
    assert marked.count("none") == len(marked) - 1


def test_the_choice_shows_weights_or_activations(tasks: Visit) -> None:
    cells = "#layers-0 .heatmap-label text"
    weights = tasks.texts(cells)
    tasks.page.locator(".choice >> nth=0 >> text=activations").click()
    tasks.page.wait_for_selector("#layers-0[data-drawn='2']")
    assert len(tasks.texts(cells)) == len(weights) == 18 * 13
    assert tasks.texts(cells) != weights


def test_every_format_is_named_on_a_desktop(tasks: Visit) -> None:
    for plot in ("formats-0", "formats-1"):
        assert named(tasks, plot) == {name for name, *_ in fake.FORMATS[1:]}


def named(seen: Visit, plot: str) -> set[str]:
    return {text.split(",")[0] for text in seen.texts(f"#{plot} .ytick text")}


def test_a_phone_in_the_dark_gets_its_own_colours_and_no_sideways_scrolling(browser: Browser) -> None:
    text = tasks_page(fake.tasks(), fake.PROVENANCE)
    seen = visit(browser, text, width=390, height=844, scheme="dark")
    seen.settle()
    assert quiet(seen)
    assert seen.page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    assert named(seen, "formats-0") == {name for name, *_ in fake.FORMATS[1:]}
    colour = "getComputedStyle(document.querySelector('#formats-0 .ytick text')).fill"
    dark = seen.page.evaluate(colour)
    seen.page.emulate_media(color_scheme="light")
    seen.settle(times=2)
    assert seen.page.evaluate(colour) != dark
    seen.close()


def test_the_pages_of_checkpoints_and_matrices_draw_and_stay_quiet(browser: Browser) -> None:
    seen = visit(browser, checkpoint_page(fake.checkpoint(), fake.PROVENANCE))
    seen.settle()
    assert quiet(seen)
    assert seen.page.locator("#totals .scatterlayer path.point").count() == 12
    assert seen.page.locator("#tensors .heatmaplayer image").count() >= 1
    seen.close()
    seen = visit(browser, matrices_page(fake.matrices(), fake.PROVENANCE))
    seen.settle()
    assert quiet(seen)
    assert seen.page.locator("#matrix-0 .scatterlayer path.point").count() == 13
    seen.close()


def test_a_hostile_tensor_name_is_shown_and_not_run(browser: Browser) -> None:
    report = fake.checkpoint(1)
    name = report.tensors[0].tensor
    hostile = replace(
        report,
        path=HOSTILE,
        tensors=tuple(replace(t, tensor=HOSTILE) if t.tensor == name else t for t in report.tensors),
        scores=tuple(replace(s, tensor=HOSTILE) if s.tensor == name else s for s in report.scores),
    )
    seen = visit(browser, checkpoint_page(hostile, fake.PROVENANCE))
    seen.settle()
    assert quiet(seen)
    assert seen.page.evaluate("window.stolen") is None
    assert HOSTILE in seen.texts("table.sortable tbody th")
    assert any("</script>" in label or "onerror" in label for label in seen.texts("#tensors .ytick"))
    seen.close()
