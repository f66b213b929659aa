"""``fewbits scale``, and ``fewbits compare --codecs``."""

import json
from pathlib import Path

import pytest

from fewbits.cli.main import run
from fewbits.distributed import sent_bytes
from fewbits.records import CodecRates

CODECS = "mxfp8_e4m3,topk:density=0.05,feedback"


@pytest.mark.usefixtures("copied_processes")
def test_codecs_are_compared_and_their_rates_predict_more_ranks(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "160")
    data, page = tmp_path / "r.json", tmp_path / "r.html"
    given = ["compare", "--codecs", CODECS, "--task", "digits", "--processes", "2", "--seeds", "1"]
    given += ["--steps", "3", "--links", "1,10", "--latency-us", "5"]
    assert run([*given, "--json", str(data), "--report", str(page)]) == 0
    shown = " ".join(capsys.readouterr().out.split())
    assert "Times are predicted, not measured" in shown
    assert "topk:density=0.05,feedback" in shown
    (found,) = json.loads(data.read_text())["comparisons"]
    assert (found["processes"], found["steps"], found["seeds"]) == (2, 3, [0])
    wide, narrow, kept = found["scores"]
    assert [s["codec"] for s in found["scores"]] == ["fp32", "mxfp8_e4m3", "topk:density=0.05,feedback"]
    near = 64  # a byte for each parameter, less what the longest piece of a process spares it
    for score in found["scores"]:
        bare = sent_bytes(score["codec"], found["parameters"], 2)
        assert abs(score["bytes_sent"] - bare) < near
        assert [t["gigabits"] for t in score["predicted"]] == [1, 10]
        assert all(t["seconds"] > found["compute_seconds"] for t in score["predicted"])
    assert wide["relative_error"] < 1e-6 < narrow["relative_error"] < 0.1 < kept["relative_error"] < 1
    assert wide["differences"] == [0]
    assert narrow["baseline"] == wide["values"]
    assert 'data-figure="bytes-0"' in page.read_text()

    again = tmp_path / "s.json"
    asked = ["scale", "--parameters", "1M", "--step-ms", "10", "--codecs", CODECS, "--ranks", "2,1024"]
    assert (
        run([*asked, "--rates", str(data), "--json", str(again), "--report", str(tmp_path / "s.html")]) == 0
    )
    shown = " ".join(capsys.readouterr().out.split())
    assert "A prediction: nothing was trained and nothing was sent." in shown
    assert f"unpacks,from{data}." in shown.replace(" ", "")  # a long path is broken
    prediction = json.loads(again.read_text())["prediction"]
    assert prediction["rates"] == found["rates"]
    assert [s["ranks"] for s in prediction["steps"]] == [2, 1024] * 3
    assert run([*asked, "--rates", str(again)]) == 0


def test_rates_are_measured_here_and_it_is_said(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(
        "fewbits.compare.scaling.measured_rates", lambda codec, n: CodecRates(codec, 0.5, 0.5, 0.5)
    )
    given = ["scale", "--parameters", "7B", "--step-ms", "900", "--ranks", "64", "--per-node", "8"]
    assert run([*given, "--inner-link", "200", "--link", "25", "--overlap", "0.5", "--codecs", "mxfp4"]) == 0
    shown = " ".join(capsys.readouterr().out.split())
    assert "unpacks, measured here." in shown
    assert "7000000000 values" in shown
    assert "levels" in shown


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (["--codecs", "mxfp5"], "the nearest are"),
        (["--codecs", "powersgd:rank=2"], "powersgd:rank=2 is a hook of torch's DistributedDataParallel"),
        (["--codecs", "mxfp4:feedbak"], "'feedbak' in codec 'mxfp4:feedbak'"),
        (["--codecs", "fp32", "--processes", "1"], "--processes '1', and a codec is of what travels"),
        (["--codecs", "fp32", "--processes", "5"], "16 samples in a step of bytes for 5 processes"),
        (["--codecs", "fp32", "--steps", "-1"], "--steps"),
        (["--codecs", "fp32", "--seeds", "0"], "--seeds"),
        (["--codecs", "fp32", "--links", "1,0"], "--links '1,0': '0' is no number above 0"),
        (["--codecs", "fp32", "--links", "-1"], "--links '-1': '-1' is no number above 0"),
        (["--codecs", "fp32", "--latency-us", "-1"], "a latency of -1 us; expected 0 or more"),
        (["--codecs", "fp32", "--task", "nothing"], "there is no task 'nothing'"),
    ],
)
def test_bad_input_of_compare_is_one_line(
    given: list[str], said: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fewbits.compare.codecs.train_together", lambda *_: pytest.fail("trained"))
    task = [] if "--task" in given else ["--task", "bytes"]
    assert run(["compare", *task, *given]) == 2
    lines = [line for line in capsys.readouterr().err.splitlines() if line.startswith("fewbits: ")]
    assert len(lines) == 1
    assert said in lines[0]


def test_numbers_of_ranks_are_read_exactly(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        "fewbits.compare.scaling.measured_rates", lambda codec, n: CodecRates(codec, 0.5, 0.5, 0.5)
    )
    words = ["scale", "--parameters", "1M", "--step-ms", "10", "--codecs", "mxfp4"]
    written = tmp_path / "s.json"
    assert run([*words, "--ranks", "1K,99999999999999999999", "--json", str(written)]) == 0
    prediction = json.loads(written.read_text())["prediction"]
    assert {s["ranks"] for s in prediction["steps"]} == {1000, 10**20 - 1}


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (["--parameters", "many"], "--parameters 'many'; expected a whole number from 1 up"),
        (["--step-ms", "0"], "0 ms of compute in a step"),
        (["--step-ms", "-3"], "-3 ms of compute in a step"),
        (["--codecs", "mxfp5"], "the nearest are"),
        (["--codecs", "fp16_compress"], "is a hook of torch's"),
        (["--ranks", "1"], "--ranks '1'; expected a whole number from 2 up"),
        (
            ["--per-node", "2000000", "--inner-link", "9"],
            "--per-node '2000000'; expected a whole number from 1 to",
        ),
        (["--ranks", "2.5"], "--ranks '2.5'; expected a whole number from 1 up, written as 64, 25.6M"),
        (["--ranks", "8,1e3"], "--ranks '1e3'; expected a whole number from 1 up, written as 64, 25.6M"),
        (["--link", "0"], "a link of 0 Gbit/s"),
        (["--per-node", "4"], "no link within it"),
        (["--per-node", "0"], "--per-node"),
        (["--inner-link", "100"], "a link within nodes, which have one rank each"),
        (["--overlap", "2"], "an overlap of 2"),
        (["--rates", "gone.json"], "--rates gone.json does not exist"),
    ],
)
def test_bad_input_of_scale_is_one_line(
    given: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    usual = {"--parameters": "1M", "--step-ms": "10", "--codecs": "mxfp4"}
    words = [word for pair in (usual | {given[0]: given[1]}).items() for word in pair]
    assert run(["scale", *words]) == 2
    lines = [line for line in capsys.readouterr().err.splitlines() if line.startswith("fewbits: ")]
    assert len(lines) == 1
    assert said in lines[0]
