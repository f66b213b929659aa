"""What `make setup` installs beside the package is what the package asks for."""

import re
from importlib.metadata import requires

import pytest

from tools.libraries import main, required


def names(requirements: list[str]) -> set[str]:
    return {re.split(r"[^\w.-]", line)[0] for line in requirements}


def test_extras_within_an_extra_stand_for_what_they_name() -> None:
    extras = {"a": ["x>=1", "y; python_version >= '3.11'"], "b": ["z"], "dev": ["fewbits[a,b]", "w"]}
    assert required("dev", extras) == ["x>=1", "y; python_version >= '3.11'", "z", "w"]


def test_every_library_of_the_package_and_its_extras_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    main()
    assert names(capsys.readouterr().out.splitlines()) == names(requires("fewbits") or []) - {"fewbits"}
