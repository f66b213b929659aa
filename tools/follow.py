"""Follow a list of CONTRIBUTING.md in a copy of the tree, step by step, and run the tests that it names.

    python tools/follow.py "Add a format" --into build/follow

A step is an item of the list under that heading, in one of three forms:

* In `FILE`, below (or above) `LINE`: and a code block, put there by the one line that holds LINE;
* Create `FILE`: and a code block, which is its text;
* Run `COMMAND`.

What a person would do by hand is so done by a machine: a list that leaves something out fails.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import sysconfig
from importlib import import_module
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[1]
STEP = re.compile(
    r"^\d+\. (?:In `(?P<file>[^`]+)`, (?P<side>below|above) `(?P<line>[^`]+)`"
    r"|Create `(?P<new>[^`]+)`|Run `(?P<command>[^`]+)`)[^\n]*\n"
    r"(?:\n?(?P<indent> {3,4})```\w*\n(?P<block>.*?)\n(?P=indent)```\n)?",
    re.MULTILINE | re.DOTALL,
)


class Step(NamedTuple):
    """One item of a list."""

    file: str | None  # that is changed
    side: str | None  # below or above
    line: str | None  # which line
    new: str | None  # file that is created
    command: str | None
    block: str  # what is put there


def _step(indent: str | None, block: str | None, **where: str | None) -> Step:
    return Step(block=re.sub(f"^{indent}", "", block or "", flags=re.MULTILINE), **where)


def steps(page: str, heading: str) -> list[Step]:
    """The steps under a heading; an item that is none of the three forms is refused."""
    match = re.search(rf"^#+ {re.escape(heading)}\n(.*?)(?=^#+ |\Z)", page, re.MULTILINE | re.DOTALL)
    if match is None:
        raise SystemExit(f"CONTRIBUTING.md has no heading {heading!r}")
    section = match.group(1)
    items = [_step(**item.groupdict()) for item in STEP.finditer(section)]
    numbered = re.findall(r"^\d+\. .*", section, re.MULTILINE)
    if len(items) != len(numbered):
        raise SystemExit(f"of the {len(numbered)} steps under {heading!r} only {len(items)} can be followed")
    return items


def copy(target: Path) -> None:
    """Put the files that git knows, and an environment that borrows this one's libraries, into a folder."""
    listing = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    files = subprocess.run(listing, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    for name in filter(None, files.split("\0")):
        (target / name).parent.mkdir(parents=True, exist_ok=True)
        if (ROOT / name).exists():
            shutil.copy2(ROOT / name, target / name)
    shutil.copy2(import_module("fewbits._native").__file__, target / "src" / "fewbits")
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(target / ".venv")], check=True)
    python = target / ".venv" / "bin" / "python"
    where = [python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))"]
    packages = Path(subprocess.run(where, capture_output=True, text=True, check=True).stdout.strip())
    borrowed = [p for p in sys.path if p.endswith("site-packages")] or [sysconfig.get_path("purelib")]
    (packages / "borrowed.pth").write_text("\n".join([str(target / "src"), *borrowed]) + "\n")
    (target / ".venv" / ".ready").touch()


def follow(step: Step, tree: Path) -> None:
    """Do one step in a tree."""
    if step.command is not None:
        environment = os.environ | {"PATH": f"{tree / '.venv' / 'bin'}{os.pathsep}{os.environ['PATH']}"}
        subprocess.run(step.command, shell=True, cwd=tree, env=environment, check=True)
        return
    if step.new is not None:
        (tree / step.new).parent.mkdir(parents=True, exist_ok=True)
        (tree / step.new).write_text(step.block + "\n")
        return
    assert step.file is not None
    assert step.line is not None
    lines = (tree / step.file).read_text().splitlines()
    places = [number for number, line in enumerate(lines) if step.line in line]
    if len(places) != 1:
        raise SystemExit(f"{step.file} has {len(places)} lines with {step.line!r}; one was expected")
    place = places[0] + (step.side == "below")
    lines[place:place] = step.block.splitlines()
    (tree / step.file).write_text("\n".join(lines) + "\n")


def main() -> None:
    """Copy the tree and follow the list."""
    raw = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=raw)
    parser.add_argument("heading")
    parser.add_argument("--into", type=Path, required=True, help="a folder that does not exist yet")
    arguments = parser.parse_args()
    copy(arguments.into)
    for number, step in enumerate(steps((ROOT / "CONTRIBUTING.md").read_text(), arguments.heading), 1):
        print(f"{number}. {step.command or step.new or step.file}", flush=True)
        follow(step, arguments.into)


if __name__ == "__main__":
    main()
