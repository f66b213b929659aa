"""ggml's own products of MXFP4, Q4_0 and ternary weights with vectors, as a peer.

Its code is not in this repository.

`python benchmarks/_ggml.py` loads the source package of llama-cpp-python from PyPI, which carries ggml, and
builds ggml's two libraries for this CPU into build/ggml (CMake, a C++ compiler, some minutes). Benchmarks
that find them there measure them, and say so where they are missing.
"""

from __future__ import annotations

import ctypes
import subprocess
import sys
import tarfile
from functools import cache
from pathlib import Path

import torch

FOLDER = Path(__file__).parent.parent / "build" / "ggml"
PACKAGE = "llama-cpp-python"
KINDS = {"q4_0": 2, "tq1_0": 34, "tq2_0": 35, "mxfp4": 39}  # enum ggml_type in ggml.h
_ROWS = 16  # of random weights, repeated: the speed does not depend on values


def build() -> None:
    """Load the package and build ggml, if that is not done."""
    FOLDER.mkdir(parents=True, exist_ok=True)
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--no-binary", PACKAGE, PACKAGE]
    subprocess.run([*command, "--dest", str(FOLDER)], check=True)
    package = max(FOLDER.glob("*.tar.gz"), key=lambda path: path.stat().st_mtime)
    with tarfile.open(package) as archive:
        archive.extractall(FOLDER, [m for m in archive.getmembers() if "/vendor/llama.cpp/ggml/" in m.name])
    source = next(FOLDER.glob("*/vendor/llama.cpp/ggml"))
    (source / "ggml.pc.in").touch()  # CMake asks for it, and the package leaves it out
    options = ["-DCMAKE_BUILD_TYPE=Release", "-DBUILD_SHARED_LIBS=ON", "-DGGML_NATIVE=ON"]
    options += ["-DGGML_BUILD_TESTS=OFF", "-DGGML_BUILD_EXAMPLES=OFF"]  # the package leaves these out too
    subprocess.run(["cmake", "-S", str(source), "-B", str(FOLDER / "build"), *options], check=True)
    subprocess.run(["cmake", "--build", str(FOLDER / "build"), "--target", "ggml-cpu", "-j"], check=True)


def _library(name: str) -> Path | None:
    return next(iter(sorted(FOLDER.glob(f"build/**/lib{name}.so"))), None)


def built() -> bool:
    """Return whether ggml's libraries are there."""
    return _library("ggml-cpu") is not None


class _Parameters(ctypes.Structure):
    _fields_ = (("size", ctypes.c_size_t), ("buffer", ctypes.c_void_p), ("no_alloc", ctypes.c_bool))


@cache
def _libraries() -> tuple[ctypes.CDLL, ctypes.CDLL]:
    base, cpu = (
        ctypes.CDLL(str(_library(name)), mode=ctypes.RTLD_GLOBAL) for name in ("ggml-base", "ggml-cpu")
    )
    pointer, number = ctypes.c_void_p, ctypes.c_int64
    base.ggml_init.argtypes, base.ggml_init.restype = [_Parameters], pointer
    base.ggml_new_tensor_2d.argtypes = [pointer, ctypes.c_int, number, number]
    base.ggml_mul_mat.argtypes = [pointer, pointer, pointer]
    base.ggml_new_graph.argtypes = base.ggml_get_data.argtypes = [pointer]
    base.ggml_build_forward_expand.argtypes = [pointer, pointer]
    base.ggml_quantize_chunk.argtypes = [ctypes.c_int, pointer, pointer, number, number, number, pointer]
    base.ggml_quantize_chunk.restype = ctypes.c_size_t
    for function in ("ggml_new_tensor_2d", "ggml_mul_mat", "ggml_new_graph", "ggml_get_data"):
        getattr(base, function).restype = pointer
    base.ggml_free.argtypes = [pointer]
    cpu.ggml_graph_compute_with_ctx.argtypes = [pointer, pointer, ctypes.c_int]
    cpu.ggml_cpu_init()
    return base, cpu


class Matrix:
    """A (lines, columns) matrix of random weights in one of ggml's formats, times one vector."""

    def __init__(self, kind: str, lines: int, columns: int) -> None:
        base, _ = _libraries()
        room = lines * columns * 5 // 8 + (1 << 26)  # 4.5 bits a value at most, and the graph's own
        self._context = base.ggml_init(_Parameters(room, None, False))
        matrix = base.ggml_new_tensor_2d(self._context, KINDS[kind], columns, lines)
        self._x = base.ggml_new_tensor_2d(self._context, 0, columns, 1)
        product = base.ggml_mul_mat(self._context, matrix, self._x)
        self._graph = base.ggml_new_graph(self._context)
        base.ggml_build_forward_expand(self._graph, product)
        weights = torch.randn(_ROWS, columns)
        at, rows = base.ggml_get_data(matrix), min(_ROWS, lines)
        size = base.ggml_quantize_chunk(KINDS[kind], weights.data_ptr(), at, 0, rows, columns, None)
        for line in range(rows, lines, rows):
            ctypes.memmove(at + line // rows * size, at, size * min(rows, lines - line) // rows)

    def multiply(self, x: torch.Tensor) -> None:
        """Multiply with a vector of float32, with as many threads as torch has."""
        base, cpu = _libraries()
        ctypes.memmove(base.ggml_get_data(self._x), x.data_ptr(), x.numel() * 4)
        cpu.ggml_graph_compute_with_ctx(self._context, self._graph, torch.get_num_threads())

    def __del__(self) -> None:
        _libraries()[0].ggml_free(self._context)


if __name__ == "__main__":
    build()
