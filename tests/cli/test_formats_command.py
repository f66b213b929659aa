"""`fewbits formats` lists the catalogue and shows one format, new ones included."""

import json
import os
import re
import subprocess
import sys
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import fewbits as fb
from fewbits.cli import main as cli
from fewbits.cli.formats import _numbers
from fewbits.formats import CATALOGUE, elements, parse
from fewbits.formats.nearest import _CONSTRUCTORS, _SYNONYMS, nearest
from fewbits.report.terminal.formats import number_lines


def test_the_list_names_every_format(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.run(["formats"]) == 0
    out = capsys.readouterr().out
    assert all(name in out for name in CATALOGUE)


def test_the_list_as_json_has_sources_and_grammar(tmp_path: Path) -> None:
    path = tmp_path / "formats.json"
    assert cli.run(["formats", "--json", str(path)]) == 0
    rows = json.loads(path.read_text())
    assert [r["name"] for r in rows] == list(CATALOGUE)
    assert all(r["source"] and r["grammar"] for r in rows)


@pytest.mark.parametrize("name", list(CATALOGUE))
def test_every_format_can_be_shown_with_its_source(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, name: str
) -> None:
    assert cli.run(["formats", name, "--json", str(tmp_path / "one.json")]) == 0
    out = capsys.readouterr().out
    assert "bits per value" in out
    assert "source" in out
    assert json.loads((tmp_path / "one.json").read_text())["facts"]["written as"]


def test_mxfp6_shows_its_limits_its_codes_and_a_number_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.run(["formats", "mxfp6_e2m3"]) == 0
    out = capsys.readouterr().out
    assert "7.5" in out
    assert "3F -7.5" in out
    assert "number line of element fp6_e2m3 (63 values)" in out
    assert "OCP Microscaling Formats" in out


@pytest.mark.parametrize("width", [15, 40, 80, 200])
def test_codes_have_all_digits_of_their_values_in_every_terminal(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, width: int
) -> None:
    monkeypatch.setenv("COLUMNS", str(width))

    def shown(name: str) -> dict[int, str]:
        assert cli.run(["formats", name]) == 0
        codes = capsys.readouterr().out.partition("code value")[2].partition("number line")[0]
        return {int(code, 16): text for code, text in re.findall(r"\b([0-9A-F]{2}) (\S+)", codes)}

    floats = {  # E3M2: bias 3, subnormals below 2^-2
        s << 5 | e << 2 | m: (-1) ** s * (2.0 ** (e - 3) * (1 + m / 4) if e else 2.0**-2 * m / 4)
        for s in (0, 1)
        for e in range(8)
        for m in range(4)
    }
    assert {code: float(text) for code, text in shown("fp6_e3m2").items()} == floats
    posits = shown("posit6_2")
    assert len(posits) == 64
    assert [posits[code] for code in (0x1F, 0x10, 0x20, 0x01, 0x21)] == [
        "65536",
        "1",
        "-",
        "1.52588e-05",
        "-65536",
    ]
    for code in range(1, 32):  # a posit is negated by the two's complement
        assert float(posits[64 - code]) == -float(posits[code])


def test_a_new_format_is_shown_as_readily(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.run(["formats", "float(e=3,m=4)"]) == 0
    assert "number line of float(e=3,m=4" in capsys.readouterr().out


def test_a_format_of_one_magnitude_still_draws() -> None:
    assert number_lines([-1.0, 1.0], 40, "binary").count("\n") == 2


@pytest.mark.parametrize(("encoding", "tallest"), [("latin-1", "@"), ("utf-8", "\N{FULL BLOCK}")])
def test_a_number_line_is_of_characters_that_the_terminal_has(encoding: str, tallest: str) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "fewbits", "formats", "ternary"],
        capture_output=True,
        check=False,
        env=os.environ | {"PYTHONIOENCODING": encoding},
    )
    assert done.returncode == 0, done.stderr
    assert tallest in done.stdout.decode(encoding).splitlines()[-2]


def test_the_labels_of_a_narrow_number_line_stay_apart() -> None:
    assert "-57344 57344" in number_lines([-57344.0, 57344.0], 10, "narrow")


def test_the_command_is_installed_and_prints_its_version() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "fewbits", "--version"], capture_output=True, text=True, check=True
    )
    assert done.stdout.startswith("fewbits ")


@pytest.mark.parametrize("command", ["cast", "compare", "formats", "inspect"])
def test_every_command_has_help_with_an_example(capsys: pytest.CaptureFixture[str], command: Any) -> None:
    assert cli.run([command, "--help"]) == 0
    assert f"Example: fewbits {command}" in " ".join(capsys.readouterr().out.split())


@pytest.mark.parametrize(
    ("typed", "meant"),
    [
        ("float", "float(e=4,m=3)"),
        ("fp8", "fp8_e4m3, fp8_e5m2"),
        ("MXFP4", "are mxfp4;"),
        ("mx-fp4", "are mxfp4;"),
        ("bfloat16", "are bf16;"),
        ("torch.bfloat16", "are bf16;"),
        ("float8_e4m3fn", "are fp8_e4m3;"),
        ("half", "are fp16;"),
        ("e4m3", "fp8_e4m3"),
        ("lookup", "lookup(-1,0,1)"),
        ("mxfp5", "mxfp4"),
    ],
)
def test_what_others_call_a_format_is_suggested(
    capsys: pytest.CaptureFixture[str], typed: Any, meant: Any
) -> None:
    assert cli.run(["formats", typed]) == 2
    assert meant in capsys.readouterr().err.replace("the nearest", "")


def test_every_suggestion_is_a_format() -> None:
    for name in [*CATALOGUE, *_CONSTRUCTORS, *_SYNONYMS, "fp", "mx", "int", "x", "Q4", "posit8", "zzz", ""]:
        assert all(parse(meant) for meant in nearest(name[:-1]) + nearest(name.upper()))
    assert not nearest("zzz")


@pytest.mark.parametrize("element", [e for e in elements() if e.bits <= 8], ids=str)
def test_what_is_drawn_is_what_rounding_gives(element: Any) -> None:
    drawn = _numbers(element)
    assert list(fb.fake_quantize(np.array(drawn), element)) == drawn
    # Beyond the ends and between all neighbours, in steps far finer than theirs.
    ends = np.array([drawn[0] * 4, drawn[-1] * 4, drawn[0] - 1, drawn[-1] + 1])
    fine = np.concatenate([np.linspace(a, b, 9) for a, b in pairwise(drawn)])
    given = np.concatenate([ends, fine, -fine])
    given = given if element.min < 0 else np.abs(given)
    found = fb.fake_quantize(given, element)
    assert set(found[np.isfinite(found)]) <= set(drawn)


@pytest.mark.parametrize(("name", "never"), [("ternary", "-2"), ("int4_channel", "-8"), ("mxint8", "-2")])
def test_a_code_that_rounding_never_gives_is_no_number(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, name: str, never: Any
) -> None:
    assert cli.run(["formats", name, "--json", str(tmp_path / "f.json")]) == 0
    assert never not in capsys.readouterr().out.replace(",", " ").split()
    assert float(never) not in json.loads((tmp_path / "f.json").read_text())["values"]
