"""llama.cpp itself, as a peer: it loads the GGUF that fewbits writes and computes one token after another.

Its code is not in this repository.

`python benchmarks/_llama.py` builds llama-cpp-python from its source package for this CPU into build/llama
(CMake, a C++ compiler, a quarter of an hour on two cores). Benchmarks that find it there measure it, and say
so where it is missing.
"""

from __future__ import annotations

import importlib
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

FOLDER = Path(__file__).parent.parent / "build" / "llama"
PACKAGE = "llama-cpp-python"


def build() -> None:
    """Build the package from its source, without what it depends on: diskcache comes with fewbits[cache]."""
    command = [sys.executable, "-m", "pip", "install", "--no-deps", "--no-binary", PACKAGE]
    subprocess.run([*command, "--upgrade", "--target", str(FOLDER), PACKAGE], check=True)


def built() -> bool:
    """Return whether the package is there."""
    return (FOLDER / "llama_cpp").is_dir()


def package() -> Any:
    """Return the package that was built."""
    if str(FOLDER) not in sys.path:
        sys.path.append(str(FOLDER))
    return importlib.import_module("llama_cpp")


class Token:
    """One token more, again and again behind the same prompt, with as many threads as torch has."""

    def __init__(self, file: Path, prompt: Sequence[int]) -> None:
        threads = torch.get_num_threads()
        self._llama = package().Llama(
            str(file), n_ctx=64, n_threads=threads, n_threads_batch=threads, verbose=False
        )
        self._llama.eval(list(prompt))

    def __call__(self) -> None:
        """Compute it, and forget it."""
        self._llama.eval([0])
        self._llama.n_tokens -= 1


if __name__ == "__main__":
    build()
