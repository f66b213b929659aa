"""The mistakes that `make mutants` makes are likely ones, each a valid program that differs in one place."""

import ast
import json
from pathlib import Path

import pytest

from tools.mutations import mutations

ROOT = Path(__file__).resolve().parents[2]

CHANGED = {
    "x = a < b": {"x = a <= b"},
    "x = (a + 1) is not (b)": {"x = (a + 1) is (b)", "x = (a - 1) is not (b)", "x = (a + 2) is not (b)"},
    "x = a not in b": {"x = a in b"},
    "x = a and b": {"x = a or b"},
    "x = not a": {"x = (a)"},
    "x = -a": {"x = (a)"},
    "x = True": {"x = False"},
    "x = 0.25": {"x = 0.5"},
    "x = 0.0": {"x = 1.0"},
    "x = min(a)": {"x = max(a)"},
    "f(a, b=c, d=e)": {"pass", "f(a, d=e)", "f(a, b=c)"},
    "x = f(b=c)": {"x = f()"},
    "x = f(b=1, *c)": {"x = f(b=2, *c)"},
    "x += a": {"pass"},
    "while a:\n    break": {"while (not (a)):\n    break", "while a:\n    continue"},
    "class A:\n    x: int | None = 3": {"class A:\n    x: int | None = 4"},
}
LEFT_ALONE = (
    "'''1 + 1'''",
    "raise ValueError(f'{a + 1}', 3)",
    "x = f'{a + 1}'",
    "x = 'a' + b",
    "__all__ = ['a', *f(b=1)]",
    "def f(a: 'list[1]') -> tuple[1]: ...",
    "@f(a=1)\ndef g(): ...",
    "x = f(paper=a)",
    "if TYPE_CHECKING:\n    x = 1",
    "from a import b",
)


def changed(tmp_path: Path, source: str) -> set[str]:
    (tmp_path / "a.py").write_text(source)
    return {m.apply(source.encode()).decode() for m in mutations(tmp_path, "a.py")}


@pytest.mark.parametrize("source", CHANGED)
def test_each_node_becomes_its_likely_wrong_twin(source: str, tmp_path: Path) -> None:
    assert changed(tmp_path, source) == CHANGED[source]


@pytest.mark.parametrize("source", LEFT_ALONE)
def test_texts_types_decorators_and_errors_are_left_alone(source: str, tmp_path: Path) -> None:
    assert changed(tmp_path, source) == set()


def test_every_mutant_of_a_module_is_a_valid_program_and_differs() -> None:
    path = "src/fewbits/sparsity/masks.py"
    source = (ROOT / path).read_bytes()
    found = mutations(ROOT, path)
    assert len(found) > 50
    for mutation in found:
        assert ast.dump(ast.parse(mutation.apply(source))) != ast.dump(ast.parse(source))


def test_each_listed_equivalent_still_stands_in_the_source_and_says_why() -> None:
    for entry in json.loads((ROOT / "tools" / "equivalent_mutants.json").read_text()):
        reason = entry.pop("reason")
        assert len(reason) > 20
        assert tuple(entry.values()) in {m.identity for m in mutations(ROOT, entry["path"])}
