"""Write the tables of docs/speed.md out of benchmarks/measured, which `python benchmarks/run.py` writes."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
MEASURED = ROOT / "benchmarks" / "measured"
PAGE = ROOT / "docs" / "speed.md"
START = "<!-- What follows is written by tools/speed_page.py. -->"
# What the reader asks, in the order of the page.
QUESTIONS = {
    "quantize": "Rounding, packing and unpacking, parts of the rate of copying, reading or writing memory",
    "matvec": "A packed matrix times one vector",
    "sparse_matvec": "A packed 2:4 matrix times one vector",
    "bit_planes": "A packed ternary matrix times one vector",
    "matmul": "A product of two matrices of 4096 x 4096, both rounded in the call",
    "small_calls": "Calls on small tensors",
    "new_results": "Results of 256 MiB in new memory",
    "compare_checkpoint": "`fewbits compare` on a checkpoint",
    "train_step": "A training step",
    "solve_dense": "Dense systems to double accuracy",
    "solve_krylov": "Sparse systems",
    "solve_wilson": "The Wilson operator",
    "all_reduce": "An all-reduce of 8 Mi float32 between four processes with a thread each",
    "top_k": "The 1 % of largest magnitudes of 8 Mi float32, on one thread",
}


def page(text: str, measured: list[dict[str, Any]]) -> str:
    """Return the page with its tables anew."""
    head, mark, _ = text.partition(START)
    if not mark:
        raise SystemExit(f"docs/speed.md has no line {START}")
    return "\n".join((head + START, "", "## Measured", "", *_measured(measured))) + "\n"


def _measured(measured: list[dict[str, Any]]) -> Iterator[str]:
    yield "Figures that miss their bar are **bold**. A column of a smaller instruction set was taken with all"
    yield "libraries held to it, on the same CPU. `benchmarks/measured/` keeps all that was written."
    for file in measured:
        machine = file["machine"]
        yield ""
        yield from _machine(machine)
        for name, question in QUESTIONS.items():
            runs = {isa: run for isa, run in file["benchmarks"].get(name, {}).items() if run["figures"]}
            if runs:
                yield ""
                yield f"{question} (`python {next(iter(runs.values()))['machine']['command'].split()[1]}`):"
                yield ""
                yield from _table(runs)


def _machine(machine: dict[str, Any]) -> Iterator[str]:
    if "gpu" in machine:
        gpu = machine["gpu"]
        yield f"### {gpu['name']}"
        yield ""
        yield f"{gpu['gibibytes']} GiB; compute capability {gpu['capability']}; the host: {machine['cpu']}."
    else:
        yield f"### {machine['cpu']}, family {machine['family']}, model {machine['model']}"
        yield ""
        yield f"{machine['cores']} cores; {', '.join(machine['units'])}."


def _table(runs: dict[str, dict[str, Any]]) -> Iterator[str]:
    """One row for each subject, one column for each measure and instruction set."""
    cells: dict[str, dict[tuple[str, str], str]] = {}
    bars: dict[tuple[str, str], list[float]] = {}
    for isa, run in runs.items():
        for f in run["figures"]:
            reached = f["value"] <= f["bar"] if f["at_most"] else f["value"] >= f["bar"]
            value = f"{f['value']:.2f}" if f["value"] < 100 else f"{f['value']:.0f}"
            cells.setdefault(f["subject"], {})[f["measure"], isa] = value if reached else f"**{value}**"
            bars.setdefault((f["measure"], isa), []).append(f["bar"])
    columns = sorted(bars, key=lambda key: [m for m, _ in bars].index(key[0]))
    yield "| | " + " | ".join(f"{measure}, {isa}" for measure, isa in columns) + " |"
    yield "|---" * (len(columns) + 1) + "|"
    yield "| *bar* | " + " | ".join(_bar(bars[key]) for key in columns) + " |"
    for subject, row in cells.items():
        yield f"| {subject} | " + " | ".join(row.get(key, "") for key in columns) + " |"


def _bar(bars: list[float]) -> str:
    low, high = min(bars), max(bars)
    return f"*{low:g}*" if low == high else f"*{low:g} to {high:g}*"


def read() -> list[dict[str, Any]]:
    """Return what was measured, one of each CPU."""
    return [json.loads(path.read_text("utf-8")) for path in sorted(MEASURED.glob("*.json"))]


if __name__ == "__main__":
    PAGE.write_text(page(PAGE.read_text("utf-8"), read()), encoding="utf-8")
