"""Print what `fewbits[dev]` requires, for pip: `make setup` installs it while the extension is compiled."""

from __future__ import annotations

import re
from pathlib import Path

try:
    import tomllib
except ModuleNotFoundError:  # Python 3.10
    import pip._vendor.tomli as tomllib

PROJECT = Path(__file__).parents[1] / "pyproject.toml"


def required(extra: str, extras: dict[str, list[str]]) -> list[str]:
    """Return the requirements of an extra, and of those that it names."""
    found = []
    for one in extras[extra]:
        named = re.fullmatch(r"fewbits\[(.+)\]", one)
        found += [r for name in named[1].split(",") for r in required(name, extras)] if named else [one]
    return found


def main() -> None:
    """Print one requirement a line, in the form of requirement files."""
    project = tomllib.loads(PROJECT.read_text(encoding="utf-8"))["project"]
    print(*project["dependencies"], *required("dev", project["optional-dependencies"]), sep="\n")


if __name__ == "__main__":
    main()
