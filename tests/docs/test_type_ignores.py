"""Where the type checker is told to look away, the line says why."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
FOLDERS = ("benchmarks", "examples", "src", "tests", "tools")
COMMENT = re.compile(r"#\s*type:\s*ignore")
EXPLAINED = re.compile(r"# type: ignore\[[a-z, -]+\]  # \w[^#]+$")
CHECKED = "src"  # what mypy reads, by pyproject.toml


def unexplained(text: str, checked: bool) -> list[str]:
    """Return the lines with a comment that has no reason; any is without, where mypy does not read."""
    lines = [line for line in text.splitlines() if COMMENT.search(line)]
    return [line for line in lines if not checked or not EXPLAINED.search(line)]


@pytest.mark.parametrize("folder", FOLDERS)
def test_every_type_ignore_says_why(folder: str) -> None:
    files = [p for p in (ROOT / folder).rglob("*.py") if p != Path(__file__)]
    assert files
    missing = {str(p): unexplained(p.read_text("utf-8"), folder == CHECKED) for p in files}
    assert not {p: lines for p, lines in missing.items() if lines}


def test_mypy_reads_no_other_folder() -> None:
    assert f'\nfiles = ["{CHECKED}"]\n' in (ROOT / "pyproject.toml").read_text("utf-8")


@pytest.mark.parametrize(
    "line",
    [
        "f(x)  # type: ignore",
        "f(x)  # type: ignore[arg-type]",
        "f(x)  # type: ignore[arg-type]  #",
        "f(x)  # type: ignore  # a tensor here",
    ],
)
def test_one_without_a_code_or_a_reason_is_found(line: str) -> None:
    explained = "f(x)  # type: ignore[arg-type, misc]  # a tensor here"
    assert unexplained(f"{explained}\n{line}\n", checked=True) == [line]
    assert unexplained(explained, checked=False) == [explained]
