"""`fewbits recipes`: the catalogue, one recipe, and JSON of both."""

import json

import pytest

from fewbits.cli.main import run
from fewbits.recipes import RECIPES


def test_the_catalogue_names_every_recipe(capfd: pytest.CaptureFixture[str]) -> None:
    assert run(["recipes", "--json", "-"]) == 0
    out, err = capfd.readouterr()
    rows = json.loads(out)
    assert [row["name"] for row in rows] == list(RECIPES)
    assert all(row["narrow"] and row["source"] for row in rows)
    assert all(name in err for name in RECIPES)


def test_one_recipe_is_shown_in_full(capfd: pytest.CaptureFixture[str]) -> None:
    assert run(["recipes", "mxfp6:gradient=mxfp8_e5m2/rceil", "--json", "-"]) == 0
    out, err = capfd.readouterr()
    told = json.loads(out)
    assert told["facts"]["recipe"] == "mxfp6:gradient=mxfp8_e5m2/rceil"
    assert told["fields"]["dx_gradient"] == "mxfp8_e5m2/rceil"
    assert told["fields"]["forward_weight"] == "mxfp6_e3m2"
    assert "dx_gradient" in err


@pytest.mark.parametrize(
    ("name", "source"),
    [
        ("mxfp6", RECIPES["mxfp6"].paper),
        ("mxfp6:gradient=mxfp8_e5m2", f"changed from mxfp6: {RECIPES['mxfp6'].paper}"),
        ("mx:weight=mxfp6_e3m2", f"changed from fp32: {RECIPES['fp32'].paper}"),
    ],
)
def test_a_changed_recipe_says_what_its_source_is_the_source_of(
    capfd: pytest.CaptureFixture[str], name: str, source: str
) -> None:
    assert run(["recipes", name, "--json", "-"]) == 0
    assert json.loads(capfd.readouterr().out)["facts"]["source"] == source


def test_plain_training_differs_in_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["recipes", "fp32"]) == 0
    assert "nothing" in capsys.readouterr().out


def test_an_unknown_recipe_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["recipes", "mxfp5"]) == 2
    assert "the nearest are" in capsys.readouterr().err
