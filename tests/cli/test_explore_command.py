"""``fewbits explore``: tables, JSON and a page of a design space, and a format that fits the data."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from fewbits.cli.main import run
from fewbits.formats import parse

OWN = "block(element=posit6_2,scale=e8m0,size=24)"


def test_a_space_is_measured_and_written(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "160")
    data, page = tmp_path / "r.json", tmp_path / "r.html"
    given = ["explore", "--vectors", "6", "--seed", "3", "--data", "laplace", "--formats", f"{OWN},mx9"]
    assert run([*given, "--json", str(data), "--report", str(page)]) == 0
    said = capsys.readouterr()
    shown = " ".join(said.out.split())
    assert "6 vectors of 256 values, laplace: Laplace's, of scale one; seed 3, scale rule floor" in shown
    assert OWN in shown
    assert "measuring formats" in said.err
    document = json.loads(data.read_text())
    assert document["provenance"]["seeds"] == [3]
    found = document["exploration"]
    assert len(found["formats"]) >= 1000
    assert [p["format"]["format"] for p in found["placed"]][-1] == OWN
    assert 'data-figure="proxy"' in page.read_text()


def test_a_budget_gives_a_format_that_can_be_copied(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    torch.manual_seed(0)
    save_file({"w": torch.randn(40, 512), "b": torch.randn(9)}, tmp_path / "m.safetensors")
    data, page = tmp_path / "r.json", tmp_path / "r.html"
    given = ["explore", "--data", str(tmp_path / "m.safetensors"), "--budget", "4.5", "--include", "*"]
    assert run([*given, "--json", str(data), "--report", str(page)]) == 0
    winner = capsys.readouterr().out.splitlines()[-1]
    found = json.loads(data.read_text())["choice"]
    assert winner == found["winner"]
    assert "lookup(" in winner
    assert parse(winner).bits_per_value <= 4.5
    assert found["data"]["about"].endswith("one tensor with shorter rows left out")
    assert 'data-figure="finalists"' in page.read_text()
    x = np.random.default_rng(1).standard_normal((4, 64))
    import fewbits as fb

    assert fb.qsnr(x, fb.fake_quantize(x, winner)) > 20


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--data", "gauss"], "--data 'gauss' is no distribution and no file; expected one of variance"),
        (["--formats", "mx99"], "there is no format named 'mx99'"),
        (["--formats", "e8m0"], "e8m0 has no negative values"),
        (["--budget", "0.5"], "a budget of 0.5 bits per value; expected at least 1"),
        (["--budget", "4", "--formats", "mx6"], "mx6 takes 6 bits per value, more than the budget of 4"),
        (["--budget", "4", "--vectors", "1"], "one vector; expected at least 2"),
        (["--vectors", "0"], "'--vectors'"),
        (["--include", "w*"], "--include and --exclude choose tensors of a file, and variance has none"),
    ],
)
def test_wrong_requests_are_one_line(
    words: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["explore", *words]) == 2
    said = capsys.readouterr()
    assert message in said.err
    assert "Traceback" not in said.err
    assert said.out == ""


def test_no_report_is_written_over_the_data(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    np.save(tmp_path / "a.npy", np.ones((2, 4)))
    path = str(tmp_path / "a.npy")
    assert run(["explore", "--data", path, "--json", path]) == 2
    assert "is --data" in capsys.readouterr().err
