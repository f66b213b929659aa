import json
import math
import re
import sys
from dataclasses import replace
from html import unescape
from typing import Any

import pytest

from fewbits.errors import MissingDependencyError
from fewbits.records import TensorScore
from fewbits.report import check_plots, checkpoint_page, matrices_page, tasks_page
from fewbits.report.page import markup
from fewbits.report.page.figures import Cells, heat_map, plot_text
from tests.report import fake

go = pytest.importorskip("plotly.graph_objects", reason="plotly (fewbits[plots]) is not installed")

HOSTILE = "</script><script>window.stolen = 1</script><img src=x onerror='window.stolen = 1'>$a$ \u202e\ud800"
PAGES = {
    "tasks": tasks_page(fake.tasks(), fake.PROVENANCE),
    "checkpoint": checkpoint_page(fake.checkpoint(), fake.PROVENANCE),
    "matrices": matrices_page(fake.matrices(), fake.PROVENANCE),
}


def figures(page: str) -> dict[str, Any]:
    found = re.findall(
        r'<script type="application/json" data-figure="([\w-]+)">(.*?)</script>', page, re.DOTALL
    )
    return {name: json.loads(text) for name, text in found}


def own_part(page: str) -> str:
    """The page without Plotly's five megabytes."""
    return page[: page.index("<script>\n/**")]


@pytest.mark.parametrize("kind", PAGES)
def test_a_page_is_one_file_that_names_no_address(kind: str) -> None:
    own = own_part(PAGES[kind])
    assert not re.search(r"\b(src|href)=", own)
    assert "url(" not in own
    assert "//" not in own.replace("*/", "").replace("/*", "")
    assert "default-src 'none'" in own


@pytest.mark.parametrize("kind", PAGES)
def test_figures_are_valid_for_plotly(kind: str) -> None:
    def with_real_colours(value: Any, key: str = "") -> Any:
        if isinstance(value, dict):
            return {k: with_real_colours(v, k) for k, v in value.items()}
        if isinstance(value, list):
            return [with_real_colours(item) for item in value]
        return "#000" if key.endswith("color") else value

    for figure in figures(PAGES[kind]).values():
        go.Figure(data=with_real_colours(figure["data"]), layout=with_real_colours(figure["layout"]))


def test_the_same_records_give_the_same_bytes() -> None:
    assert tasks_page(fake.tasks(), fake.PROVENANCE) == PAGES["tasks"]
    assert checkpoint_page(fake.checkpoint(), fake.PROVENANCE) == PAGES["checkpoint"]


def test_each_task_has_its_formats_with_their_front_and_a_heat_map_of_two_layers() -> None:
    found = figures(PAGES["tasks"])
    assert list(found) == ["formats-0", "layers-0", "formats-1", "layers-1"]
    fp32, front, beaten, best, _ = found["formats-0"]["data"]
    assert fp32["x"] == [0.0, 0.0]
    assert front["line"]["shape"] == "vh"
    assert front["x"] == best["x"] == sorted(best["x"], reverse=True)  # a loss: from large to small
    assert len(beaten["x"]) + len(best["x"]) == len(fake.FORMATS) - 1  # FP32 is the line at zero
    assert "mxfp8_e5m2" in beaten["hovertext"][1]
    weights, activations = found["layers-0"]["data"]
    assert (len(weights["z"]), len(weights["z"][0])) == (18, 13)
    assert weights["z"] != activations["z"]


def test_a_model_that_a_format_broke_is_named_and_not_drawn() -> None:
    scores = fake.tasks()[:14]
    scores[3] = replace(scores[3], values=(math.nan, 1.6, 1.6))
    page = tasks_page(scores, fake.PROVENANCE)
    assert "Without a finite value and so not drawn: mx9." in page
    assert "▼ worse" in page
    assert sum(len(trace["x"]) for trace in figures(page)["formats-0"]["data"][2:]) == 12


def test_bars_with_an_infinite_end_are_cut() -> None:
    scores = fake.tasks()[:2]
    layers = tuple(
        replace(layer, weight_qsnr_db=-math.inf, activation_qsnr_db=math.nan) for layer in scores[1].layers
    )
    page = tasks_page([scores[0], replace(scores[1], layers=layers)], fake.PROVENANCE)
    assert figures(page)["layers-0"]["data"][1]["z"][0] == [None]


@pytest.mark.parametrize(("metric", "written"), [("BLEU", "BLEU"), ("agreement", "Agreement with FP32")])
def test_a_metric_keeps_its_capital_letters(metric: str, written: str) -> None:
    page = tasks_page([replace(s, metric=metric) for s in fake.tasks()[:2]], fake.PROVENANCE)
    assert f"<h3>{written} minus that of FP32</h3>" in page
    assert f'<p class="">{written}, ' in page


def test_fp32_alone_needs_no_plot() -> None:
    assert figures(tasks_page(fake.tasks()[:1], fake.PROVENANCE)) == {}


@pytest.mark.parametrize(
    ("kind", "command"),
    [
        ("tasks", "fewbits compare --task bytes --formats mxfp4 --seeds 3"),
        ("checkpoint", "fewbits compare models/tiny/model.safetensors --formats mxfp4"),
        ("matrices", "fewbits compare bcsstk14.mtx --formats mxfp4"),
    ],
)
def test_every_row_has_its_command_and_the_page_its_own(kind: str, command: str) -> None:
    page = PAGES[kind].replace("<wbr>", "")
    assert f"<code>{command}</code>" in page
    assert (
        len(re.findall("<code>fewbits compare ", page))
        == {"tasks": 29, "checkpoint": 15, "matrices": 15}[kind]
    )
    assert f"<code>{fake.PROVENANCE.command}</code>" in page
    assert "torch 2.13.0" in page


def test_commands_quote_for_the_shell_and_start_as_the_caller_says() -> None:
    scores = [replace(fake.tasks()[1], format="float(e=3,m=2)")]
    page = unescape(tasks_page(scores, fake.PROVENANCE, base_command="fewbits compare --scale-rule ceil"))
    assert "fewbits compare --scale-rule ceil --task bytes --formats 'float(e=3,m=2)' --seeds 3" in page


def test_headers_sort_by_number_and_missing_values_are_empty() -> None:
    page = own_part(PAGES["tasks"])
    assert '<th scope="col" class="number" aria-sort="none"><button type="button"' in page
    assert 'data-value="4.25" data-title="bits per value"><span>4.25</span>' in page
    assert 'data-value="Infinity" data-title="weight QSNR (dB)"><span>exact<' in page
    assert 'data-value="" data-title="area x memory (proxy)"><span>-<' in page


def test_a_checkpoint_lists_a_thousand_tensors_and_counts_the_rest() -> None:
    page = checkpoint_page(fake.checkpoint(200), fake.PROVENANCE)
    assert "The table holds the 1000 largest tensors; --json has the other 603." in page
    assert len(figures(page)["tensors"]["data"][0]["z"]) == 60
    assert "Exact in the median tensor and so not drawn: bf16, fp32." in page


def test_a_checkpoint_without_floating_point_tensors_has_a_page() -> None:
    report = fake.checkpoint(1)
    page = checkpoint_page(replace(report, tensors=report.tensors[-1:], scores=()), fake.PROVENANCE)
    assert figures(page) == {}
    assert "position_ids" in page


def test_within_a_budget_no_page_speaks_of_a_qsnr_that_was_asked_for() -> None:
    report = replace(fake.checkpoint(1), budget=4.5)
    page, before = (checkpoint_page(r, fake.PROVENANCE) for r in (report, fake.checkpoint(1)))
    for text in ("24 dB asked for", "reach the QSNR asked for", "tensors that pass"):
        assert text in before
        assert text not in page
    assert "lose least within 4.5 bits per value" in page
    assert len(figures(page)["totals"]["data"]) == len(figures(before)["totals"]["data"]) - 1


@pytest.mark.parametrize("asked", [math.inf, -math.inf])
def test_a_bound_without_a_place_on_the_axis_is_not_drawn(asked: float) -> None:
    page = checkpoint_page(replace(fake.checkpoint(1), min_qsnr_db=asked), fake.PROVENANCE)
    assert f"keep {asked:g} dB" in page
    assert "dB asked for" not in page


def test_names_from_a_file_stay_text() -> None:
    report = fake.checkpoint(1)
    tensors = tuple(replace(t, tensor=HOSTILE, dtype=HOSTILE, reason=HOSTILE) for t in report.tensors[:1])
    scores = tuple(replace(s, tensor=HOSTILE, format=HOSTILE) for s in report.scores[:1])
    provenance = replace(fake.PROVENANCE, command=HOSTILE, versions=((HOSTILE, HOSTILE),))
    pages = (
        checkpoint_page(replace(report, path=HOSTILE, tensors=tensors, scores=scores), provenance),
        matrices_page(
            [replace(fake.matrices()[0], matrix=HOSTILE, format=HOSTILE, note=HOSTILE)], provenance
        ),
        tasks_page([replace(fake.tasks()[1], task=HOSTILE, format=HOSTILE)], provenance),
    )
    for page in pages:
        own = own_part(page)
        assert own.encode()
        assert "<img" not in own
        assert "<script>window" not in own
        assert "&lt;/script&gt;&lt;script&gt;window.stolen" in own


def test_plotly_gets_no_tags_no_formulas_and_no_hidden_characters() -> None:
    assert plot_text("<b>$x$&\x1b") == r"&lt;b&gt;&#36;x&#36;&amp;\x1b"


def test_two_long_names_that_shorten_alike_stay_two_rows() -> None:
    names = [f"{'a' * 60}{x * 30}{'a' * 30}" for x in "bc"]
    figure = heat_map(names, ["mx4"], [Cells("weight", [[10.0], [20.0]])])
    labels = figure["layout"]["yaxis"]["ticktext"]
    assert labels[0] == labels[1]
    assert figure["data"][0]["z"] == [[10.0], [20.0]]


def test_without_plotly_the_error_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "plotly.offline", None)
    for write in (check_plots, lambda: tasks_page(fake.tasks(), fake.PROVENANCE)):
        with pytest.raises(MissingDependencyError, match=re.escape("pip install 'fewbits[plots]'")):
            write()


def test_without_jinja_the_error_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    markup._environment.cache_clear()
    monkeypatch.setitem(sys.modules, "jinja2", None)
    with pytest.raises(MissingDependencyError, match="Jinja2"):
        check_plots()


def test_a_tensor_of_zeros_does_not_blank_the_totals() -> None:
    report = fake.checkpoint(1)
    zero = report.scores[0]
    scores = (
        *report.scores,
        TensorScore("zeros", (4,), "BF16", zero.format, 4.0, 2, replace(zero.error, qsnr_db=math.nan)),
    )
    page = checkpoint_page(replace(report, scores=scores), fake.PROVENANCE)
    assert "n/a" not in page[page.index("Whole checkpoint by format") : page.index("Tensor by tensor")]
