"""docs/surface.md is the public surface, and a type checker knows all of it."""

import ast
import re
import runpy
from pathlib import Path

import pytest

import fewbits
from fewbits.formats import CATALOGUE

ROOT = Path(__file__).parents[2]
TOOL = runpy.run_path(str(ROOT / "tools" / "surface.py"), run_name="tool")


PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
# What the page lists of each module.
LISTED = {
    section.partition("\n")[0]: set(re.findall(r"^\| `([\w.]+)`", section, re.MULTILINE))
    for section in re.split(r"^## ", TOOL["PAGE"].read_text("utf-8"), flags=re.MULTILINE)[1:]
}
DEFINITIONS = "fewbits.kernels.reference"  # which pages name, and nobody imports


def is_listed(name: str) -> bool:
    """Whether a dotted name is a module of the page, what one lists, or a format of the catalogue."""
    names = {f"fewbits.{name}" for name in CATALOGUE} | set(LISTED)
    return name in names.union(*({f"{module}.{own}" for own in LISTED[module]} for module in LISTED))


def imported(text: str) -> set[str]:
    """The names of fewbits that the Python blocks of a page import, or look up in what they imported so."""
    found = set()
    for block in re.findall(r"```python\n(.*?)```", text, re.DOTALL):
        called: dict[str, str] = {}
        for node in ast.walk(ast.parse(block)):
            if isinstance(node, ast.ImportFrom) and str(node.module).partition(".")[0] == "fewbits":
                found |= {f"{node.module}.{alias.name}" for alias in node.names}
                called |= {a.asname or a.name: f"{node.module}.{a.name}" for a in node.names}
            elif isinstance(node, ast.Import):
                called |= {a.asname or a.name: a.name for a in node.names if a.name.startswith("fewbits")}
        for node in ast.walk(ast.parse(block)):
            if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
                above = called.get(node.value.id, "")
                found |= {f"{above}.{node.attr}"} if above in LISTED else set()
    return found - {"fewbits.__version__"}


def vague(types: str) -> bool:
    """Whether a signature leaves something to `Any`, or an argument or a result without a type."""
    return bool(re.search(r"\bAny\b", types)) or (types.startswith("(") and " -> " not in types)


def test_the_page_is_what_the_package_has() -> None:
    for package in ("jax", "lightning", "transformers"):
        pytest.importorskip(package, reason=f"the page has a module that needs {package}")
    assert TOOL["PAGE"].read_text("utf-8") == TOOL["page"](), "run python tools/surface.py"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_name_that_a_page_imports_or_spells_out_is_on_the_page(page: Path) -> None:
    text = page.read_text("utf-8")
    spelled = {name for name in re.findall(r"`(fewbits(?:\.\w+)+)[`(]", text) if DEFINITIONS not in name}
    assert {name for name in imported(text) | spelled if not is_listed(name)} == set()


def test_a_name_that_is_not_on_the_page_would_be_seen() -> None:
    block = "```python\nimport fewbits as fb\nfrom fewbits.nn import {}\nfb.{}\n```"
    assert all(map(is_listed, imported(block.format("prepare", "mxfp4"))))
    assert not any(map(is_listed, imported(block.format("layer_precision", "mxfp5"))))


def test_every_folder_says_what_is_public() -> None:
    for module in TOOL["modules"]():
        assert module is fewbits.report or list(TOOL["entries"](module)), module.__name__


def test_no_public_type_is_any() -> None:
    rows = [
        f"{module.__name__}: {entry.name} {entry.types}"
        for module in TOOL["modules"]()
        for entry in TOOL["entries"](module)
        if re.search(r"\bAny\b", entry.types)
    ]
    assert rows == []


def test_what_is_vague_would_be_seen() -> None:
    assert vague("(x: Any) -> float")
    assert vague("(x: dict[str, Any]) -> float")
    assert vague("(x)")
    assert not vague("(anything: Array) -> Array")
