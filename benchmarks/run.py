"""Run the benchmarks with every instruction set of this CPU, and set their figures beside their bars.

Each runs in a process of its own. What it writes goes to measured/CPU.json, where what is not measured now
stays as it was. Then `python tools/speed_page.py` writes the tables of docs/speed.md.

    python benchmarks/run.py [quantize matvec ...] [--isa avx2,avx512] [--device cuda] [--rounds N]

With --device cuda, what a GPU runs; it has a file of its own.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from _alternating import table
from _machine import cpu, file_name, gpu, held
from bars import BARS, figures

from fewbits import kernels

HERE = Path(__file__).parent
MEASURED = HERE / "measured"
# Kernels that differ by instruction set are measured with each; for the others the CPU's best says enough.
EVERY_ISA = (
    *(
        "quantize",
        "matvec",
        "sparse_matvec",
        "bit_planes",
        "matmul",
        "train_step",
        "solve_dense",
        "solve_krylov",
    ),
    "top_k",
)
# Kernels for GPUs are compiled for each format, which takes longer than all measuring.
ON_A_GPU = {
    "quantize": [
        "--formats",
        "mxfp8_e4m3,mxfp8_e5m2,mxfp6_e3m2,mxfp6_e2m3,mxfp4,mxint8,mx9,mx6,mx4,nvfp4,vsq8,int8_channel,fp8_e4m3_tensor",
    ],
    "matvec": ["--formats", "mxfp4,nvfp4,mxfp6_e2m3,mxfp8_e4m3,mxfp8_e5m2,mxint8,int4_channel"],
    "matmul": [],
    "train_step": ["--formats", "fp32,amp-bf16,mxfp8,mxfp6,mxint8,mxfp4w-mxfp6_e2m3"],
}
# Those that a bar is asked of; the others say more when they are run alone.
ARGUMENTS = {
    "solve_krylov": ["--scipy", "1"],
    "solve_dense": ["--smallest", "4000"],
    "all_reduce": ["--ranks", "4", "--links", "loopback,1"],
}


def measure(name: str, isa: str, rounds: int | None, device: str) -> dict[str, Any]:
    """Run one benchmark, let it print its table, and return what it wrote with its figures.

    On a GPU ``isa`` is the backend.
    """
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "figures.json"
        own = ARGUMENTS.get(name, []) if device == "cpu" else [*ON_A_GPU[name], "--device", device]
        command = [sys.executable, str(HERE / f"{name}.py"), "--json", str(path), *own]
        if rounds:
            command += ["--rounds", str(rounds)]
        settings = held(isa) if device == "cpu" else {}
        subprocess.run(command, check=True, env={**os.environ, **settings})
        written: dict[str, Any] = json.loads(path.read_text())
    written["figures"] = [figure._asdict() for figure in figures(name, written["rows"], isa)]
    return written


def lines(measured: dict[str, Any]) -> list[tuple[Any, ...]]:
    """Return the rows of the table of all figures."""
    return [
        (name, isa, f["subject"], f["measure"], f["value"], ("<= " if f["at_most"] else "") + f"{f['bar']:g}",
         f["bar"] / f["value"] if f["at_most"] else f["value"] / f["bar"])
        for name, runs in measured["benchmarks"].items()
        for isa, run in runs.items()
        for f in run["figures"]
    ]  # fmt: skip


def main() -> None:
    """Measure, write after each benchmark, print the table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("names", nargs="*", default=[], help=f"default: {' '.join(BARS)}")
    parser.add_argument("--isa", default="", help="comma-separated; default: all of this CPU")
    parser.add_argument("--rounds", type=int, help="default: the benchmark's own")
    parser.add_argument("--device", default="cpu", choices=("cpu", "cuda"), help="default: cpu")
    given = parser.parse_args()
    on_cpu = given.device == "cpu"
    names = tuple(BARS) if on_cpu else tuple(ON_A_GPU)
    unknown = set(given.names) - set(names)
    if unknown:
        parser.error(
            f"no benchmark {', '.join(sorted(unknown))} for {given.device}; there are {', '.join(names)}"
        )
    isas = _isas(parser, given.isa) if on_cpu else [kernels.active_backend(given.device)]
    machine = cpu() if on_cpu else {**cpu(), "gpu": gpu()}
    path = MEASURED / f"{file_name(machine)}.json"
    MEASURED.mkdir(exist_ok=True)
    for name in given.names or names:
        for isa in isas if name in EVERY_ISA else isas[:1]:
            print(f"\n{name}, {isa}", flush=True)
            run = measure(name, isa, given.rounds, given.device)
            # Read after measuring: another process may have measured something else meanwhile.
            measured = (
                json.loads(path.read_text()) if path.exists() else {"machine": machine, "benchmarks": {}}
            )
            # A hypervisor may have hidden units when the file was begun.
            measured["machine"] = max(measured["machine"], machine, key=lambda each: len(each["units"]))
            measured["benchmarks"].setdefault(name, {})[isa] = run
            path.write_text(json.dumps(measured, indent=1) + "\n")
    print()
    table(("benchmark", "instructions", "subject", "measure", "value", "bar", "of the bar"), lines(measured))


def _isas(parser: argparse.ArgumentParser, asked: str) -> list[str]:
    """Return the instruction sets that are asked for, or all that this CPU has with kernels of their own."""
    isas = [isa for isa in asked.split(",") if isa] or [
        isa for isa in kernels.available_isas() if isa != "baseline"
    ]
    lacking = set(isas) - set(kernels.available_isas())
    if lacking:
        parser.error(
            f"this CPU cannot run {', '.join(sorted(lacking))}; it has {', '.join(kernels.available_isas())}"
        )
    return isas


if __name__ == "__main__":
    main()
