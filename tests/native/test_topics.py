"""One operation has one name: the folders of C++, of the calls into it, of the definition, of the tests."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
KERNELS = ROOT / "src" / "fewbits" / "kernels"
TOPICS = {d.name for d in (ROOT / "native" / "kernels").iterdir() if d.is_dir()}
OURS = {"dispatch", "jobs"}  # of native/ itself, beside its kernels


def folders(place: Path) -> set[str]:
    return {d.name for d in place.iterdir() if d.is_dir() and d.name != "__pycache__"}


def modules(place: Path) -> set[str]:
    return {str(f.relative_to(place)) for f in place.glob("*/*.py") if f.name != "__init__.py"}


def test_every_topic_of_the_compiled_kernels_has_its_folder_of_calls() -> None:
    assert folders(KERNELS / "native") == TOPICS | OURS


@pytest.mark.parametrize("place", ["src/fewbits/kernels/reference", "src/fewbits/kernels/portable"])
def test_other_backends_use_the_same_topics(place: str) -> None:
    assert folders(ROOT / place) <= TOPICS


@pytest.mark.parametrize("place", ["tests/native", "tests/kernels/reference"])
def test_tests_lie_in_the_same_folders(place: str) -> None:
    assert folders(ROOT / place) <= TOPICS | OURS


def test_a_definition_and_its_fast_twin_have_one_module_name() -> None:
    defined, fast = modules(KERNELS / "reference"), modules(KERNELS / "native")
    both = {
        "quantize/quantize.py",
        "dequantize/dequantize.py",
        "nm/stream.py",
        "dense/residuals.py",
        "gemm/product.py",
    }
    assert both <= defined & fast
    # What has no twin: parts of a definition, and calls whose definition is made of others.
    alone = {"gemv/gemv.py", "lattice/passes.py", "values/magnitudes.py"}
    assert {m for m in fast - defined if m.partition("/")[0] not in OURS} == alone


def test_the_compiled_module_is_imported_in_one_folder() -> None:
    imports = re.compile(r"^\s*(from fewbits import .*\b_native\b|import fewbits\._native)", re.MULTILINE)
    sources = sorted((ROOT / "src" / "fewbits").rglob("*.py"))
    importers = {f for f in sources if imports.search(f.read_text(encoding="utf-8"))}
    assert importers
    assert {f for f in importers if KERNELS / "native" not in f.parents} == set()
