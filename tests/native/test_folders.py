"""The native sources: every file includes what it uses, from one root, and nothing goes round in a circle."""

import re
import subprocess
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

NATIVE = Path(__file__).resolve().parents[2] / "native"
SOURCES = sorted(NATIVE.rglob("*.[ch]pp"))
KERNELS = sorted((NATIVE / "kernels").rglob("*.inc.hpp"))
# Each room includes from itself and from those below it only; `table` gathers what isa/ compiles.
ROOMS = ["jobs", "kernels/values", "kernels/quantize", "kernels/dequantize", "kernels/nm", "kernels/gemv"]
ALONE = ["kernels/gemm", "kernels/sparse", "kernels/stencil", "kernels/lattice", "kernels/dense"]


def included(source: Path) -> list[str]:
    return re.findall(r'^#include "([^"]+)"', source.read_text(encoding="utf-8"), re.MULTILINE)


def test_includes_are_written_from_the_root_and_exist() -> None:
    assert len(SOURCES) > 50
    missing = [(s.name, i) for s in SOURCES for i in included(s) if not (NATIVE / i).is_file()]
    assert missing == []


def test_no_include_goes_round_in_a_circle() -> None:
    graph = {str(s.relative_to(NATIVE)): included(s) for s in SOURCES}
    assert len(list(TopologicalSorter(graph).static_order())) >= len(graph)
    first, *_, last = KERNELS
    graph[str(first.relative_to(NATIVE))] = [str(last.relative_to(NATIVE))]
    graph[str(last.relative_to(NATIVE))] = [str(first.relative_to(NATIVE))]
    with pytest.raises(CycleError):  # the control
        list(TopologicalSorter(graph).static_order())


@pytest.mark.parametrize(
    "source", [k for k in KERNELS if k.parent != NATIVE / "kernels"], ids=lambda k: k.stem
)
def test_a_room_includes_what_lies_below_it(source: Path) -> None:
    room = str(source.parent.relative_to(NATIVE))
    below = ROOMS[: ROOMS.index(room)] if room in ROOMS else ROOMS[:2]
    assert room in ROOMS + ALONE
    assert [i for i in included(source) if str(Path(i).parent) not in (room, *below)] == []


@pytest.mark.slow
@pytest.mark.parametrize("source", KERNELS, ids=lambda k: k.stem)
def test_every_file_of_kernels_compiles_alone(source: Path, compiler: str, tmp_path: Path) -> None:
    """In C++, as any of them may be included first."""
    alone = tmp_path / "alone.cpp"
    text = source.relative_to(NATIVE)
    alone.write_text(
        f'#include "kernels/headers.hpp"\nnamespace fewbits::alone {{\n#include "{text}"\n}}\n',
        encoding="utf-8",
    )
    for flags in ([], ["-march=x86-64-v3"], ["-march=x86-64-v4", "-mavx512bf16", "-mavx512vbmi"]):
        subprocess.run(
            [compiler, "-std=c++17", "-fsyntax-only", "-w", f"-I{NATIVE}", *flags, alone], check=True
        )
