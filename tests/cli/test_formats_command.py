"""`fewbits formats` lists the catalogue and shows one format, new ones included."""

import json
import subprocess
import sys

import pytest

from fewbits.cli import main as cli
from fewbits.formats import CATALOGUE
from fewbits.report.formats_text import number_lines


def test_the_list_names_every_format(capsys):
    assert cli.run(["formats"]) == 0
    out = capsys.readouterr().out
    assert all(name in out for name in CATALOGUE)


def test_the_list_as_json_has_sources_and_grammar(tmp_path):
    path = tmp_path / "formats.json"
    assert cli.run(["formats", "--json", str(path)]) == 0
    rows = json.loads(path.read_text())
    assert [r["name"] for r in rows] == list(CATALOGUE)
    assert all(r["source"] and r["grammar"] for r in rows)


@pytest.mark.parametrize("name", list(CATALOGUE))
def test_every_format_can_be_shown_with_its_source(capsys, tmp_path, name):
    assert cli.run(["formats", name, "--json", str(tmp_path / "one.json")]) == 0
    out = capsys.readouterr().out
    assert "bits per value" in out
    assert "source" in out
    assert json.loads((tmp_path / "one.json").read_text())["facts"]["written as"]


def test_mxfp6_shows_its_limits_its_codes_and_a_number_line(capsys):
    assert cli.run(["formats", "mxfp6_e2m3"]) == 0
    out = capsys.readouterr().out
    assert "7.5" in out
    assert "3F -7.5" in out
    assert "number line of element fp6_e2m3 (63 values)" in out
    assert "OCP Microscaling Formats" in out


def test_a_new_format_is_shown_as_readily(capsys):
    assert cli.run(["formats", "float(e=3,m=4)"]) == 0
    assert "number line of float(e=3,m=4" in capsys.readouterr().out


def test_a_format_of_one_magnitude_still_draws():
    assert number_lines([-1.0, 1.0], 40, "binary").count("\n") == 2


def test_the_labels_of_a_narrow_number_line_stay_apart():
    assert "-57344 57344" in number_lines([-57344.0, 57344.0], 10, "narrow")


def test_the_command_is_installed_and_prints_its_version():
    done = subprocess.run(
        [sys.executable, "-m", "fewbits.cli", "--version"], capture_output=True, text=True, check=True
    )
    assert done.stdout.startswith("fewbits ")


@pytest.mark.parametrize("command", ["cast", "compare", "formats", "inspect"])
def test_every_command_has_help_with_an_example(capsys, command):
    assert cli.run([command, "--help"]) == 0
    assert f"Example: fewbits {command}" in " ".join(capsys.readouterr().out.split())
