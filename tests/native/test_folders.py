"""The native sources: each file includes what it uses, in no circle, and has a namespace of its own."""

import re
import subprocess
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

NATIVE = Path(__file__).resolve().parents[2] / "native"
SOURCES = sorted(NATIVE.rglob("*.[ch]pp"))
KERNELS = sorted((NATIVE / "kernels").rglob("*.inc.hpp"))
# Each room includes from itself and from those below it only; `table` gathers what isa/ compiles.
ROOMS = [
    "jobs",
    "kernels/values",
    "kernels/quantize",
    "kernels/dequantize",
    "kernels/nm",
    "kernels/gemv",
    "kernels/tally",
    "kernels/feedback",
]
ALONE = [f"kernels/{room}" for room in ("gemm", "sparse", "stencil", "lattice", "dense", "top_k")]


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


@pytest.mark.parametrize("source", KERNELS, ids=lambda k: k.stem)
def test_kernels_use_no_name_of_a_header_that_they_do_not_include(source: Path) -> None:
    # Headers of GCC's library bring it along, those of LLVM's do not.
    assert "std::size_t" not in source.read_text(encoding="utf-8")


def missing(text: str) -> list[str]:
    """Return the definitions that comments name and that do not exist."""
    named = re.findall(r"\b(?:kernels/)?reference/[\w/]+\.py", text)
    source = NATIVE.parent / "src" / "fewbits" / "kernels"
    return [n for n in named if not (source / n.removeprefix("kernels/")).is_file()]


def test_the_definitions_that_comments_name_exist() -> None:
    assert [m for s in SOURCES for m in missing(s.read_text(encoding="utf-8"))] == []
    assert missing("// kernels/reference/values/threefry.py, kernels/reference/none.py") == [
        "kernels/reference/none.py"
    ]


def comment_lines(text: str) -> tuple[int, int]:
    """Return how many lines are comments, and how many hold code; an #include is neither."""
    lines = [line for line in map(str.strip, text.splitlines()) if line and not line.startswith("#")]
    comments = sum(line.startswith("//") for line in lines)
    return comments, len(lines) - comments


@pytest.mark.parametrize(
    "source", [s for s in SOURCES if NATIVE / "kernels" in s.parents], ids=lambda s: s.name.split(".")[0]
)
def test_a_kernel_says_what_it_does_in_15_lines_of_comments_for_100_of_code(source: Path) -> None:
    comments, code = comment_lines(source.read_text(encoding="utf-8"))
    assert 100 * comments >= 15 * code


def test_a_comment_behind_code_is_no_line_of_comments() -> None:
    assert comment_lines("#pragma once\n// a\nint b;  // c\n\n  // d\n") == (2, 1)


def without_bodies(text: str) -> str:
    """Return what lies outside every pair of braces, with the pairs themselves: `namespace a {}`."""
    text = re.sub(r"//[^\n]*|^\s*#[^\n]*|\"(?:[^\"\\\n]|\\.)*\"", "", text, flags=re.MULTILINE)
    outside, depth = "", 0
    for c in text:
        depth += (c == "{") - (c == "}")
        if depth == 0 or (depth == 1 and c == "{"):
            outside += c
    return outside


def faults_of_namespaces(texts: dict[str, str]) -> list[str]:
    """Return the files that are not one namespace of their own, named as the file; `texts` by file name."""
    faults, taken = [], set()
    for name, text in texts.items():
        namespaces = re.fullmatch(r"\s*namespace (\w+) \{\}\s*", without_bodies(text))
        if namespaces is None:
            faults.append(f"{name} is not one namespace")
        elif "using namespace" in text:
            faults.append(f"{name} takes all names of another")
        elif namespaces[1] != name.split(".")[0]:
            faults.append(f"{name} has the namespace {namespaces[1]}")
        elif namespaces[1] in taken:
            faults.append(f"{name} shares the namespace {namespaces[1]}")
        taken |= set() if namespaces is None else {namespaces[1]}
    return faults


def test_each_file_of_kernels_has_a_namespace_of_its_own() -> None:
    assert len({k.name for k in KERNELS}) == len(KERNELS) > 40
    assert faults_of_namespaces({k.name: k.read_text(encoding="utf-8") for k in KERNELS}) == []


@pytest.mark.parametrize(
    ("texts", "fault"),
    [
        ({"a.inc.hpp": "namespace {\nint x;\n}\n"}, "a.inc.hpp is not one namespace"),
        ({"a.inc.hpp": "namespace a {\n}\nint x;\n"}, "a.inc.hpp is not one namespace"),
        ({"a.inc.hpp": "namespace b {\n}\n"}, "a.inc.hpp has the namespace b"),
        ({"a.inc.hpp": "namespace a {\n}\n", "a.hpp": "namespace a {}"}, "a.hpp shares the namespace a"),
        ({"a.inc.hpp": "namespace a {\nusing namespace b;\n}\n"}, "a.inc.hpp takes all names of another"),
    ],
    ids=["unnamed", "outside", "other", "shared", "using"],
)
def test_that_check_sees_what_is_wrong(texts: dict[str, str], fault: str) -> None:
    assert faults_of_namespaces(texts) == [fault]


@pytest.mark.slow
@pytest.mark.parametrize("source", KERNELS, ids=lambda k: k.stem)
def test_every_file_of_kernels_compiles_alone(source: Path, compiler: str, tmp_path: Path) -> None:
    """In C++, as any of them may be included first."""
    alone = tmp_path / "alone.cpp"
    text = source.relative_to(NATIVE)
    alone.write_text(
        f'#include "kernels/headers.hpp"\nnamespace fewbits::alone {{\nnamespace {{\n'
        f'#include "{text}"\n}}\n}}\n',
        encoding="utf-8",
    )
    for flags in ([], ["-march=x86-64-v3"], ["-march=x86-64-v4", "-mavx512bf16", "-mavx512vbmi"]):
        subprocess.run(
            [compiler, "-std=c++20", "-fsyntax-only", "-w", f"-I{NATIVE}", *flags, alone], check=True
        )
