"""Codecs and predictions, in the terminal, as JSON and as pages."""

import math
from dataclasses import replace

import pytest

from fewbits.evidence import paired
from fewbits.records import CodecComparison, CodecLimit
from fewbits.report import codecs_json, codecs_page, codecs_table, scale_json, scale_page, scale_table
from tests.report import fake, scaling
from tests.report.test_json_text import strict
from tests.report.test_pages import figures
from tests.report.test_table import printed


def row(text: str, name: str) -> list[str]:
    (found,) = [line.split() for line in text.splitlines() if line.split()[:1] == [name]]
    return found


def test_a_row_has_bytes_errors_paired_differences_and_predicted_times() -> None:
    comparison = scaling.comparison()
    score = comparison.scores[-2]
    evidence = paired(score.values, score.baseline)
    assert row(printed(codecs_table([comparison]), 200), "mxfp4") == [
        "mxfp4", "4.25", "104", "KiB", f"{786432 / score.bytes_sent:.2f}", "0.16", f"{score.mean:.4f}",
        f"{evidence.mean:+.4f}*", f"{evidence.margin:.4f}", "41.8", "40.2", "40.1",
    ]  # fmt: skip


@pytest.mark.parametrize("width", [80, 120])
def test_tables_fit_the_terminal(width: int) -> None:
    for table in (codecs_table([scaling.comparison()]), scale_table(scaling.prediction())):
        text = printed(table, width)
        assert "…" not in text
        assert max(len(line) for line in text.splitlines()) <= width


def words(comparison: CodecComparison) -> str:
    return " ".join(printed(codecs_table([comparison]), 100).split())


def test_it_is_said_that_times_are_predicted_and_what_from() -> None:
    text = words(scaling.comparison())
    assert "Times are predicted, not measured: from the compute of a step without exchange, 40.0 ms" in text
    assert "20 us for each message" in text
    assert "of the codecs without evidence of a loss: at 1 Gbit/s" in text
    prediction = " ".join(printed(scale_table(scaling.prediction()), 100).split())
    assert "A prediction: nothing was trained and nothing was sent. From 120 ms of compute" in prediction
    assert "8 ranks in a node with 200 Gbit/s each within it" in prediction
    assert "messages hide behind 50.0 % of the compute" in prediction
    for page in (
        codecs_page([scaling.comparison()], fake.PROVENANCE),
        scale_page(scaling.prediction(), fake.PROVENANCE),
    ):
        plain = page.replace("<wbr>", "")
        assert "not measured: from the compute" in plain or "nothing was trained" in plain


def test_the_fastest_is_not_one_that_is_known_to_lose() -> None:
    comparison = scaling.comparison(links=(1.0,))
    fastest = min(comparison.scores, key=lambda s: s.predicted[0].seconds)
    assert fastest.codec == "topk:density=0.01,feedback"  # which loses 0.31 nats
    assert "without evidence of a loss: at 1 Gbit/s int8_256:feedback." in words(comparison)
    assert "Fastest as predicted" not in words(scaling.comparison(seeds=1))


def test_where_a_codec_pays_is_said_in_ranks_and_speeds() -> None:
    text = printed(scale_table(scaling.prediction()), 160)
    assert row(text.split("A prediction")[0].replace("\nmxfp4", "\nx", 1), "x")[-1] == "<7.68"
    flat = " ".join(text.split())
    assert "mxfp4: faster than fp32 on all numbers of ranks" in flat
    assert "mxfp8_e4m3: faster than fp32 on 1024 to 1048576 ranks, and on no others" in flat
    assert "bf16: faster than fp32 on no number of ranks" in flat
    several = CodecLimit("bf16", ((2, 2), (64, 128)))
    said = printed(scale_table(replace(scaling.prediction(), limits=(several,))), 160)
    assert "bf16: faster than fp32 on 2, 64 to 128 ranks" in " ".join(said.split())


@pytest.mark.parametrize(
    ("ranges", "shown"),
    [
        ((), "none"), (((1e-3, 1e5),), "all"), (((1e-3, 5.0),), "<5"), (((2.0, 1e5),), ">2"),
        (((1e-3, 0.5), (3.0, 4.25)), "<0.5, 3-4.25"),
    ],
)  # fmt: skip
def test_speeds_at_which_a_codec_pays_are_ranges(ranges: tuple[tuple[float, float], ...], shown: str) -> None:
    prediction = scaling.prediction()
    steps = tuple(
        replace(s, pays_gigabits=ranges) if s.codec == "mxfp4" else s
        for s in prediction.steps
        if s.ranks == 2
    )
    text = printed(scale_table(replace(prediction, steps=steps, limits=())), 200)
    assert row(text, "mxfp4")[-len(shown.split()) :] == shown.split()


def test_json_has_everything_and_reads_back() -> None:
    document = strict(codecs_json([scaling.comparison()], fake.PROVENANCE))
    assert (document["kind"], document["schema"]) == ("codecs", 1)
    (found,) = document["comparisons"]
    assert list(found) == [
        "task", "metric", "lower_is_better", "steps", "seeds", "processes", "parameters", "compute_seconds",
        "latency_us", "scores", "rates",
    ]  # fmt: skip
    assert list(found["scores"][2]) == [
        "codec", "bits_per_value", "bytes_sent", "bytes_wide", "relative_error", "values", "baseline",
        "train_losses", "predicted", "resolution", "mean", "differences", "evidence",
    ]  # fmt: skip
    assert found["scores"][2]["predicted"][1]["gigabits"] == 10
    assert found["rates"][1] == {"codec": "bf16", "encode_ns": 1.7, "add_ns": 1.02, "decode_ns": 1.19}
    document = strict(scale_json(scaling.prediction(), fake.PROVENANCE))
    assert document["kind"] == "scaling"
    assert document["prediction"]["steps"][3]["codec"] == "bf16"
    assert document["prediction"]["steps"][3]["pays_gigabits"] == [[0.001, 7.68]]
    assert document["prediction"]["rates_from"] == "measured here"


def test_the_page_of_codecs_draws_two_fronts_and_times_by_links() -> None:
    found = figures(codecs_page([scaling.comparison()], fake.PROVENANCE))
    assert list(found) == ["bytes-0", "time-0", "links-0"]
    reference, front, beaten, best = found["bytes-0"]["data"]
    assert reference["x"] == [0.0, 0.0]
    assert front["line"]["shape"] == "vh"
    assert front["x"] == best["x"] == sorted(best["x"], reverse=True)  # a loss: from large to small
    assert len(beaten["x"]) + len(best["x"]) == len(scaling.CODECS)
    assert any("topk" in text for text in best["hovertext"])  # the fewest bytes are always on the front
    curves = [trace for trace in found["links-0"]["data"] if trace["mode"] == "lines+markers"]
    assert len(curves) == len(scaling.CODECS)
    assert all(trace["y"] == sorted(trace["y"], reverse=True) for trace in curves)


def test_a_codec_that_broke_is_named_and_one_link_needs_no_curve() -> None:
    comparison = scaling.comparison(links=(1.0,))
    broken = replace(comparison.scores[1], values=(math.nan,) * 3)
    page = codecs_page([replace(comparison, scores=(comparison.scores[0], broken))], fake.PROVENANCE)
    assert list(figures(page)) == ["bytes-0", "time-0"]
    assert "Without a finite value and so not drawn: bf16." in page
    alone = codecs_page([replace(comparison, scores=comparison.scores[:1])], fake.PROVENANCE)
    assert figures(alone) == {}


def test_every_codec_has_its_command() -> None:
    page = codecs_page([scaling.comparison()], fake.PROVENANCE, base_command="fewbits compare --seeds 3")
    plain = page.replace("<wbr>", "")
    assert "<code>fewbits compare --seeds 3 --task bytes --codecs mxfp4</code>" in plain
    assert plain.count("<code>fewbits compare --seeds 3") == len(scaling.CODECS)


def test_the_page_of_a_prediction_draws_efficiency_and_time_by_ranks() -> None:
    found = figures(scale_page(scaling.prediction(), fake.PROVENANCE))
    assert list(found) == ["efficiency", "times"]
    assert [len(figure["data"]) for figure in found.values()] == [len(scaling.CODECS)] * 2
    assert found["times"]["data"][0]["x"] == [2, 64, 4096]
    assert "4096 ranks, levels" in found["times"]["data"][0]["hovertext"][2]
