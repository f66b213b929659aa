"""docs/surface.md is the public surface, and a type checker knows all of it."""

import re
import runpy
from pathlib import Path

import pytest

import fewbits

ROOT = Path(__file__).parents[2]
TOOL = runpy.run_path(str(ROOT / "tools" / "surface.py"), run_name="tool")


def vague(types: str) -> bool:
    """Whether a signature leaves something to `Any`, or an argument or a result without a type."""
    return bool(re.search(r"\bAny\b", types)) or (types.startswith("(") and " -> " not in types)


def test_the_page_is_what_the_package_has() -> None:
    pytest.importorskip("jax", reason="the page has fewbits.jax, which needs JAX")
    assert TOOL["PAGE"].read_text("utf-8") == TOOL["page"](), "run python tools/surface.py"


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
