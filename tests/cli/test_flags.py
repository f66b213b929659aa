"""Errors name arguments; the command line says what the user typed."""

from typing import Any

import pytest

from fewbits.cli.flags import parameter_flags, spelled_as_flags, with_flags
from fewbits.cli.main import app
from fewbits.cli.prune import prune
from fewbits.errors import ArgumentError

FLAGS = {"scale_rule": "--scale-rule", "exclude": "--exclude", "format": "--format", "source": "SOURCE"}


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("scale_rule='x' is none", "--scale-rule 'x' is none"),
        ("name it in `exclude`", "name it in --exclude"),
        ("`source` is a folder", "SOURCE is a folder"),
        ("format=4 is no text", "format=4 is no text"),  # of a file, not of an argument
        ("block(size=8,format='x')", "block(size=8,format='x')"),
        ("a.exclude='x'", "a.exclude='x'"),
        ("`fewbits inspect` lists them", "`fewbits inspect` lists them"),
    ],
)
def test_only_arguments_become_flags(text: str, expected: Any) -> None:
    assert spelled_as_flags(text, FLAGS) == expected


def test_a_command_translates_its_own_errors_and_keeps_their_kind() -> None:
    def command(exclude: str) -> None:
        raise ArgumentError(f"exclude={exclude!r} fits no module")

    with pytest.raises(ArgumentError, match=r"^--exclude 'q' fits no module$"):
        with_flags(command)("q")


def test_every_parameter_has_a_flag() -> None:
    assert parameter_flags(prune)["source"] == "SOURCE"
    assert parameter_flags(prune)["steps"] == "--steps"
    assert app.registered_commands
