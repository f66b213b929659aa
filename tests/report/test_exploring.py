"""A design space and a choice within a budget, in the terminal, as JSON and as pages."""

import math
from dataclasses import replace
from typing import Any

import pytest

from fewbits.fronts import pareto_front
from fewbits.report import choice_json, choice_page, choice_table, explore_json, explore_page, explore_table
from fewbits.report.columns.exploring import best_within, bound_sentence, written
from tests.report import exploring, fake
from tests.report.test_browser import Browser, Visit, browser, quiet, visit  # noqa: F401 - a fixture
from tests.report.test_json_text import strict
from tests.report.test_pages import figures
from tests.report.test_table import printed

SPACE, CHOICE = exploring.exploration(), exploring.choice()


def rows(text: str, name: str) -> list[list[str]]:
    return [line.split() for line in text.splitlines() if line.split()[:1] == [name]]


def test_a_named_format_has_its_distances_to_the_fronts() -> None:
    placed = SPACE.placed[0]
    (row,) = [r for r in rows(printed(explore_table(SPACE), 200), placed.format.format) if len(r) == 8]
    own = placed.format
    assert row == [
        own.format, f"{own.bits_per_value:.2f}", f"{own.qsnr_db:.1f}", "0", "-0.55",
        f"{own.proxy:.2g}", "3.61", "inf",
    ]  # fmt: skip


@pytest.mark.parametrize("width", [80, 120])
def test_tables_fit_the_terminal(width: int) -> None:
    for table in (explore_table(SPACE), choice_table(CHOICE)):
        text = printed(table, width)
        assert "…" not in text
        assert max(len(line) for line in text.splitlines()) <= width


def test_the_best_within_every_half_bit_are_those_of_brute_force() -> None:
    found = best_within(SPACE)
    assert [row.bits for row in found] == sorted({row.bits for row in found})
    for row in found:
        within = [f.qsnr_db for f in SPACE.formats if f.bits_per_value <= row.bits]
        powers = [
            f.qsnr_db for f in SPACE.formats if f.bits_per_value <= row.bits and f.scale == "power of two"
        ]
        assert row.best.qsnr_db == max(within)
        assert row.power_of_two is not None
        assert row.power_of_two.qsnr_db == max(powers)
    only_real = replace(SPACE, formats=tuple(f for f in SPACE.formats if f.scale == "float"))
    assert all(row.power_of_two is None for row in best_within(only_real))


def flat(text: str) -> str:
    return " ".join(text.split())


def test_it_is_said_what_was_measured_that_the_proxy_is_one_and_whether_the_bound_holds() -> None:
    text = flat(printed(explore_table(SPACE), 100))
    assert f"{len(SPACE.formats)} formats, each on 10000 vectors of 256 values, variance" in text
    assert (
        "the proxy counts bits of multipliers, shifters, adders and memory: nothing was synthesized." in text
    )
    assert (
        "All 48 BDR formats lie above the lower bound of theorem 1 of their paper, by the QSNR of all vectors"
        " together; single vectors were not held to it." in text
    )
    below = replace(SPACE.formats[0], bound_db=SPACE.formats[0].qsnr_db + 1)
    told = (
        "QSNR of all vectors together 1 of 48 BDR formats lie below the lower bound of theorem 1, which holds"
    )
    assert told in bound_sentence(replace(SPACE, formats=(below, *SPACE.formats[1:])))


def test_long_tables_are_written_by_their_number_of_values() -> None:
    assert (
        written("block(element=lookup(-1,0,1),scale=fp32,size=8)")
        == "block(element=lookup(-1,0,1),scale=fp32,size=8)"
    )
    assert (
        written(f"block(element={exploring.TABLE},scale=e8m0,size=8)")
        == "block(element=lookup(32-values),scale=e8m0,size=8)"
    )


def test_a_finalist_has_both_halves_and_the_winner_is_named() -> None:
    text = printed(choice_table(CHOICE), 200)
    line = next(line for line in text.splitlines() if "table fitted here" in line)
    assert line.split()[-4:] == ["4.50", "22.48", "22.44", "0.97"]
    second = written(CHOICE.finalists[1].format.format)
    lead = CHOICE.finalists[0].held_out_db - CHOICE.finalists[1].held_out_db
    assert f"Best on held-out data, {lead:.2f} dB before {second}:" in flat(text)
    assert "764 formats of at most 4.5 bits per value, and 24 tables fitted to the data: one half of" in flat(
        text
    )
    alone = printed(choice_table(replace(CHOICE, finalists=CHOICE.finalists[:1])), 200)
    assert "Best on held-out data:" in alone


def test_json_has_everything_and_reads_back() -> None:
    document = strict(explore_json(SPACE, fake.PROVENANCE))
    assert (document["kind"], document["schema"]) == ("exploration", 1)
    space = document["exploration"]
    assert list(space) == ["data", "formats", "fronts", "placed", "sensitivity"]
    assert len(space["formats"]) == len(SPACE.formats)
    assert space["placed"][0]["format"]["format"] == SPACE.placed[0].format.format
    assert space["placed"][0]["below_power_of_two_proxy_db"] == "inf"
    document = strict(choice_json(CHOICE, fake.PROVENANCE))
    assert document["kind"] == "choice"
    assert document["choice"]["winner"] == CHOICE.winner == CHOICE.finalists[0].format.format


def test_the_page_has_every_finite_point_with_its_facets_and_the_front() -> None:
    page = explore_page(SPACE, fake.PROVENANCE)
    found = figures(page)
    assert list(found) == ["bits", "proxy"]
    finite = [f for f in SPACE.formats if math.isfinite(f.qsnr_db)]
    for cost, figure in found.items():
        *clouds, front, marked = figure["data"]
        assert sum(len(cloud["x"]) for cloud in clouds) == len(finite) == len(SPACE.formats) - 1
        assert all(len(cloud["facets"]) == len(cloud["x"]) for cloud in clouds)
        points = [(f.bits_per_value if cost == "bits" else f.proxy, f.qsnr_db) for f in finite]
        assert list(zip(front["x"], front["y"], strict=True)) == [points[i] for i in pareto_front(points)]
        assert len(marked["x"]) == len(SPACE.placed)
        assert "facets" not in marked
    assert "Formats without a finite QSNR, and so not drawn: 1." in page.replace("<wbr>", "")


def test_the_page_of_a_choice_draws_both_halves_and_writes_the_winner() -> None:
    page = choice_page(CHOICE, fake.PROVENANCE)
    (figure,) = figures(page).values()
    chosen_on, held_out = figure["data"]
    assert held_out["x"][0] == 22.44
    assert chosen_on["x"][0] == 22.48
    assert CHOICE.winner in page.replace("<wbr>", "")
    assert "Without a finite value and so not drawn: int8." in page.replace("<wbr>", "")


def test_a_finalist_that_is_exact_on_the_half_that_chose_is_named_beside_the_plot() -> None:
    first, *others = CHOICE.finalists
    exact = replace(first, format=replace(first.format, qsnr_db=math.inf))
    told = "Without a finite value on the half that chose, and no mark of it: "
    page = choice_page(replace(CHOICE, finalists=(exact, *others)), fake.PROVENANCE).replace("<wbr>", "")
    assert told + written(first.format.format) + "." in page
    assert told not in choice_page(CHOICE, fake.PROVENANCE).replace("<wbr>", "")


def shown(seen: Visit, plot: str) -> dict[str, Any]:
    """Return the points that Plotly has drawn, by the order of traces."""
    read = "id => document.getElementById(id).data.map(t => ({x: t.x, y: t.y, text: t.hovertext}))"
    *clouds, front, marked = seen.page.evaluate(read, plot)
    points = [(x, y, text) for c in clouds for x, y, text in zip(c["x"], c["y"], c["text"], strict=True)]
    return {
        "points": points,
        "front": list(zip(front["x"], front["y"], strict=True)),
        "marked": len(marked["x"]),
    }


def test_filters_hide_points_and_the_front_is_that_of_what_is_left(browser: Browser) -> None:  # noqa: F811
    seen = visit(browser, explore_page(SPACE, fake.PROVENANCE))
    seen.settle()
    before = shown(seen, "bits")
    assert len(before["points"]) == len(SPACE.formats) - 1
    for number, choice in ((0, "bdr"), (1, "float"), (2, "5 to 6")):
        seen.page.locator(f".filter[data-for=bits] >> nth={number}").get_by_text(choice, exact=True).click()
    seen.page.wait_for_selector("#bits[data-drawn='4']")
    after = shown(seen, "bits")
    finite = [f for f in SPACE.formats if math.isfinite(f.qsnr_db)]
    left = [f for f in finite if f.family != "bdr" and f.scale != "float" and not 5 <= f.bits_per_value < 6]
    assert sorted((x, y) for x, y, _ in after["points"]) == sorted(
        (f.bits_per_value, f.qsnr_db) for f in left
    )
    assert not any("bdr" in text for _, _, text in after["points"])
    points = [(f.bits_per_value, f.qsnr_db) for f in left]
    assert after["front"] == sorted({points[i] for i in pareto_front(points)})
    assert after["front"] != before["front"]
    assert after["marked"] == len(SPACE.placed)  # named formats stay
    assert len(shown(seen, "proxy")["points"]) == len(SPACE.formats) - 1  # the other plot has its own filters
    assert quiet(seen)
    seen.close()


def test_a_point_says_what_it_is(browser: Browser) -> None:  # noqa: F811
    seen = visit(browser, explore_page(SPACE, fake.PROVENANCE))
    seen.settle()
    point = seen.page.locator("#bits .scatterlayer .trace >> nth=0 >> path.point").first
    point.scroll_into_view_if_needed()
    box = point.bounding_box()
    seen.page.mouse.move(box["x"] + box["width"] / 2, box["y"] + box["height"] / 2)
    seen.page.wait_for_selector("#bits .hoverlayer .hovertext")
    text = " ".join(seen.texts("#bits .hoverlayer .hovertext"))
    assert "QSNR:" in text
    assert "bits per value, proxy" in text
    seen.close()
