"""Print the lowest versions that pyproject.toml allows, as constraints for pip: `make test-floor`.

Of `>=2.9` that is `==2.9.*`: the first series with its last corrections, since the very first release of one
may be withdrawn. What the tests alone need stays as new as it is, but for what is tied to the rest.
"""

from __future__ import annotations

import re
import sys
from importlib.metadata import requires

TIED = ("torchao",)  # each release of it serves a few releases of torch


def constraints(requirements: list[str]) -> list[str]:
    """Return a constraint for each requirement with a lower bound that users meet too."""
    lowest = []
    for requirement in requirements:
        match = re.match(r"([\w.-]+)>=([\d.]+)", requirement)
        if match and ("dev" not in requirement or match[1] in TIED):
            name, parts = match[1], match[2].split(".")
            version = ".".join(parts) if len(parts) > 2 else ".".join([*parts, "0"][:2]) + ".*"
            lowest.append(f"{name}=={version}")
    return lowest


def main() -> None:
    """Print them, with the version of torch that is given in place of the lowest one."""
    torch = sys.argv[1] if len(sys.argv) > 1 else ""
    for line in constraints(requires("fewbits") or []):
        print(f"torch=={torch}" if torch and line.startswith("torch==") else line)


if __name__ == "__main__":
    main()
