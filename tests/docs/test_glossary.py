"""One word has one meaning: public names are made of the words of docs/glossary.md."""

import re
import runpy
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SURFACE = runpy.run_path(str(ROOT / "tools" / "surface.py"), run_name="tool")
PAGE = (ROOT / "docs" / "glossary.md").read_text("utf-8")
DEFINED, PLAIN, INSTEAD = re.split(r"^## Plain words$|^## Other words$", PAGE, flags=re.MULTILINE)


def rows(section: str) -> list[tuple[str, str]]:
    """The rows of the tables of a section: what stands in the first column, and in the second."""
    cells = re.findall(r"^\| ([^|\n]+) \| (.+) \|$", section, re.MULTILINE)
    return [(left, right) for left, right in cells if left != "word"]


def words(text: str) -> list[str]:
    """The words of a name, as in `fake_quantize` and `MaskedOptimizer.param_groups`, in small letters."""
    return [word.lower() for word in re.findall(r"[A-Z]{2,}(?![a-z])|[A-Z]?[a-z0-9]+|[A-Z]", text)]


TERMS = {word for left, _ in rows(DEFINED) for word in words(left)}
ORDINARY = set(words(PLAIN.rsplit(":", 1)[1]))
FORBIDDEN = {word for left, _ in rows(INSTEAD) for word in words(left)}
NAMES = sorted(
    {
        name
        for module in SURFACE["modules"]()
        for entry in SURFACE["entries"](module)
        for name in (entry.name, *re.findall(r"(?:^\(|, )\*{0,2}(\w+):", entry.types))
    }
)


def unknown(names: list[str]) -> set[str]:
    """The words of names that the page has neither as they stand nor in the singular."""
    used = {word for name in names for word in words(name)}
    return {word for word in used if not {word, word.removesuffix("s")} & (TERMS | ORDINARY)}


def test_public_names_use_the_words_of_the_glossary_and_no_other() -> None:
    assert unknown(NAMES) == set()


def test_no_public_name_uses_a_word_that_another_one_replaces() -> None:
    assert FORBIDDEN.isdisjoint({word for name in NAMES for word in words(name)})


def test_a_name_with_a_word_of_its_own_is_noticed() -> None:
    assert unknown(["quantize", "squish_tensor"]) == {"squish"}


def test_no_word_is_defined_twice_nor_is_plain_besides() -> None:
    listed = [word.strip() for left, _ in rows(DEFINED) for word in left.split(",")]
    assert len(listed) == len(set(listed))
    assert not TERMS & ORDINARY
    assert not (TERMS | ORDINARY) & FORBIDDEN


def test_no_word_is_kept_that_no_public_name_uses() -> None:
    used = {word for name in NAMES for word in words(name)}
    assert used >= ORDINARY


@pytest.mark.parametrize("term", ["format", "narrow", "cast", "pattern", "reliable update", "stream"])
def test_the_words_that_meant_several_things_are_defined(term: str) -> None:
    assert any(term in left.split(", ") for left, _ in rows(DEFINED))
