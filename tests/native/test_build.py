"""What the build of the extension promises."""

import re
import shutil
import subprocess
import sysconfig
from collections.abc import Callable
from functools import cache
from importlib.resources import files
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
NATIVE = ROOT / "native"
SOURCES = sorted(NATIVE.rglob("*.cpp"))
KERNELS, SYSTEMS = (sorted(folder.glob("*.cpp")) for folder in (NATIVE / "isa", NATIVE / "isa" / "systems"))
FLAGS = {
    "baseline": [],
    "avx2": ["-mavx2", "-mfma", "-mf16c"],
    "avx512": ["-mavx512f", "-mavx512bw", "-mavx512dq", "-mavx512vl"],
    "avx512_bf16": [
        *("-mavx512f", "-mavx512bw", "-mavx512dq", "-mavx512vl"),
        *("-mavx512bf16", "-mavx512vbmi", "-mavx512vpopcntdq"),
    ],
}
# Of the products of matrices, which have more instruction sets to choose from.
PRODUCTS = {
    **FLAGS,
    "avx2_vnni": [*FLAGS["avx2"], "-mavxvnni"],
    "avx512_vnni": [*FLAGS["avx512"], "-mavx512vnni"],
    "avx512_bf16": [*FLAGS["avx512_bf16"], "-mavx512vnni"],
    "amx": [*FLAGS["avx512_bf16"], "-mavx512vnni", "-mamx-tile", "-mamx-bf16"],
}
LAST = NATIVE / "isa" / "avx512_bf16.cpp", NATIVE / "isa" / "systems" / "avx512.cpp"
# Each takes a quarter of a minute. All flags are among those of the last; what only AVX2 compiles runs in
# other tests, bit for bit, and few machines run the last.
COMPILED = [
    pytest.param(
        path, id=str(path.relative_to(NATIVE / "isa")), marks=[] if path in LAST else [pytest.mark.slow]
    )
    for path in KERNELS + SYSTEMS
]
WARNINGS = ["-Wall", "-Wextra", "-Wpedantic", "-Wshadow", "-Werror"]
# A weak symbol that the standard library's templates bring in.
WEAK = """
#include <map>
int total(std::map<int, int>& m) { m[2] += 1; return m[1]; }
"""


def _compile(compiler: str, source: Path, folder: Path, isa: str) -> Path:
    compiled = folder / "kernel.o"
    flags = (PRODUCTS if source.parent.name == "products" else FLAGS)[isa]
    # At -Og fewer functions are inlined than in the build, so that no weak symbol hides, in a quarter of the
    # time.
    light = ["-Og", "-finline-functions-called-once"]
    command = [compiler, "-std=c++20", *light, "-fPIC", "-ffp-contract=off", *WARNINGS]
    own_headers = ["-Wno-uninitialized", "-Wno-maybe-uninitialized"]  # g++ 12 warns of its own
    subprocess.run(
        [*command, *own_headers, *flags, f"-I{NATIVE}", "-c", str(source), "-o", str(compiled)],
        check=True,
    )
    return compiled


@pytest.fixture(scope="session")
def kernel_objects(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str, Path], Path]:
    """Compiles each kernel file once; that takes longer than what is then looked at."""

    @cache
    def compiled(compiler: str, source: Path) -> Path:
        return _compile(compiler, source, tmp_path_factory.mktemp(source.stem), source.stem)

    return compiled


def _said(*command: str | Path) -> str:
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


def _defined_symbols(nm: str, compiled: Path) -> dict[str, str]:
    """Return name -> kind of every defined symbol that other files can see."""
    said = _said(nm, "--defined-only", "--extern-only", "--demangle", compiled)
    rows = (line.split(maxsplit=2) for line in said.splitlines())
    return {name: kind for _, kind, name in rows}


@pytest.mark.parametrize("tool", ["nm"], indirect=True)
@pytest.mark.parametrize("source", COMPILED)
def test_a_kernel_file_exports_its_entry_and_nothing_weak(
    source: Path, compiler: str, tool: str, kernel_objects: Callable[[str, Path], Path]
) -> None:
    symbols = _defined_symbols(tool, kernel_objects(compiler, source))
    assert list(symbols.values()) == ["D"], symbols  # a table of functions
    table = "systems" if source in SYSTEMS else "kernels"
    assert next(iter(symbols)).startswith(f"fewbits::{source.stem}::{table}")


@pytest.mark.parametrize("isa", ["avx512_bf16", "amx"])
@pytest.mark.parametrize("tool", ["nm"], indirect=True)
def test_the_products_for_one_kind_of_cpu_export_nothing_weak(
    compiler: str, tool: str, isa: str, tmp_path: Path
) -> None:
    source = NATIVE / "isa" / "products" / f"{isa}.cpp"
    symbols = _defined_symbols(tool, _compile(compiler, source, tmp_path, source.stem))
    assert list(symbols.values()) == ["D"], symbols
    assert next(iter(symbols)).startswith(f"fewbits::{source.stem}::products")


@pytest.mark.parametrize("tool", ["nm"], indirect=True)
def test_that_check_sees_a_weak_symbol(compiler: str, tool: str, tmp_path: Path) -> None:
    source = tmp_path / "weak.cpp"
    source.write_text(WEAK)
    assert "W" in _defined_symbols(tool, _compile(compiler, source, tmp_path, "baseline")).values()


def _functions_with(instruction: str, objdump: str, compiled: Path) -> dict[str, bool]:
    """Return the names of all functions, and whether each holds an instruction that the pattern matches."""
    said = _said(objdump, "-d", "--demangle", "--no-show-raw-insn", compiled)
    assert "mulps" in said or "fmul" in said  # the kernels are in there
    found, name = {}, ""
    for line in said.splitlines():
        if line.endswith(">:"):
            name = line.split("<", 1)[1][:-2]
            found.setdefault(name, False)
        elif re.search(rf"\b({instruction})\b", line):
            found[name] = True
    return found


@pytest.mark.parametrize("tool", ["objdump"], indirect=True)
@pytest.mark.parametrize("source", COMPILED)
def test_no_multiply_add_is_fused_but_in_the_sums_of_products(
    source: Path, compiler: str, tool: str, kernel_objects: Callable[[str, Path], Path]
) -> None:
    held = _functions_with(r"vfn?m(add|sub)\w*|fml[as]", tool, kernel_objects(compiler, source))
    fused = {name for name, holds in held.items() if holds}
    # In residuals it gives what a product rounds off, which is the same number without it.
    gemv = (path.name.split(".")[0] for path in (NATIVE / "kernels" / "gemv").glob("*.inc.hpp"))
    meant = (
        *(f"::{namespace}::" for namespace in gemv),
        "::residuals::",
        "::products::",
        "::updated_columns::",
        "::vectors::multiply_add",
    )
    assert all(any(word in name for word in meant) for name in fused), fused
    assert bool(fused) == source.stem.startswith("avx")  # so that the search is known to find them


@pytest.mark.parametrize("tool", ["objdump"], indirect=True)
@pytest.mark.parametrize("source", COMPILED)
def test_every_loop_over_large_arrays_asks_for_memory_ahead(
    source: Path, compiler: str, tool: str, kernel_objects: Callable[[str, Path], Path]
) -> None:
    """GCC drops calls of functions that only prefetch: large arrays were then rounded at half the speed."""
    asks = _functions_with(r"prefetch\w*|prfm", tool, kernel_objects(compiler, source))
    coded_hop = r"::hop<.*As(Half|Quarter)"
    of_systems = "::direction_pieces<", coded_hop, "::solve_upper_rows<"
    for loop in of_systems if source in SYSTEMS else ["::round_vectors<"]:
        loops = {name for name in asks if re.search(loop, name)}
        assert loops
        assert {name for name in loops if not asks[name]} == set()


@pytest.mark.slow
@pytest.mark.parametrize("name", ["g++", "clang++"])
@pytest.mark.parametrize("source", SOURCES, ids=lambda path: path.stem)
def test_each_source_compiles_without_a_warning(source: Path, name: str) -> None:
    """With what both compilers have, that is: Clang has no __builtin_shuffle."""
    nanobind = pytest.importorskip("nanobind")
    compiler = shutil.which(name)
    if compiler is None:
        pytest.skip(f"{name} is not installed")
    flags = {"isa": FLAGS, "systems": FLAGS, "products": PRODUCTS}.get(source.parent.name, {}).get(
        source.stem, []
    )
    headers = [nanobind.include_dir(), sysconfig.get_path("include")]
    subprocess.run(
        [
            *(compiler, "-std=c++20", "-fsyntax-only", "-DFEWBITS_X86", *WARNINGS, *flags, f"-I{NATIVE}"),
            *(f"-isystem{folder}" for folder in headers),
            str(source),
        ],
        check=True,
    )


def test_each_kernel_file_differs_in_its_name_only() -> None:
    isa, fewer = NATIVE / "isa", {name: FLAGS[name] for name in ("baseline", "avx2", "avx512")}
    for folder, flags in ((isa, FLAGS), (isa / "systems", fewer), (isa / "products", PRODUCTS)):
        files = list(folder.glob("*.cpp"))
        assert len({path.read_text().replace(path.stem, "ISA") for path in files}) == 1
        assert {path.stem for path in files} == set(flags)


def test_the_package_carries_its_type_marker() -> None:
    assert files("fewbits").joinpath("py.typed").is_file()
