"""How much memory and time does `fewbits compare` take for a checkpoint, and does it keep its promise?

The promise: a checkpoint of 1 GiB within 4 GiB of memory; in proportion for others.
Limit: streaming every value once as float32, which is what any measurement has to do.
Peer: safetensors.torch.load_file and one float32 copy of all tensors, the start of a script that loads whole
files. Each job runs in a process of its own on the same generated file of BF16 matrices; memory is the
largest resident set, which counts the pages of the file that were read.

    python benchmarks/compare_checkpoint.py [--mebibytes 1024] [--formats mxfp4,mx6] [--json FILE]

Exits with 1 where the promise is broken.
"""

from __future__ import annotations

import argparse
import json
import re
import subprocess
import sys
import tempfile
from pathlib import Path
from time import perf_counter
from typing import Any

import torch
from _alternating import machine
from safetensors.torch import load_file

from fewbits.compare.checkpoint import CHECKPOINT_FORMATS, measure_checkpoint
from fewbits.files.checkpoint import chunks, read_checkpoint
from fewbits.kernels.bits.reals import widened

MEBI = 1 << 20
PROMISE = 4  # bytes of memory per byte of checkpoint
COLUMNS = 4096


def write_checkpoint(path: Path, mebibytes: int) -> None:
    """Write BF16 matrices of at most 64 MiB, piece by piece, so that writing takes no memory either."""
    sizes = [min(64, mebibytes - at) * MEBI for at in range(0, mebibytes, 64)]
    header, at = {}, 0
    for i, size in enumerate(sizes):
        shape = [size // 2 // COLUMNS, COLUMNS]
        header[f"layers.{i}.weight"] = {"dtype": "BF16", "shape": shape, "data_offsets": [at, at + size]}
        at += size
    text = json.dumps(header).encode()
    generator = torch.Generator().manual_seed(0)
    with path.open("wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        for _ in range(mebibytes):
            values = 0.02 * torch.randn(MEBI // 2, generator=generator)
            file.write(values.bfloat16().view(torch.uint8).numpy().tobytes())


def run(job: str, path: Path, formats: list[str]) -> dict[str, float]:
    """Do one job in this process; return its seconds and its peak memory."""
    start = perf_counter()
    if job == "stream":
        for tensor in read_checkpoint(path):
            for piece in chunks(tensor, COLUMNS):
                widened(piece).sum()
    elif job == "load":
        whole = {name: tensor.float() for name, tensor in load_file(path).items()}
        sum(float(tensor.sum()) for tensor in whole.values())
    else:
        measure_checkpoint(path, formats, min_qsnr_db=30)
    seconds = perf_counter() - start
    kibibytes = re.search(r"VmHWM:\s+(\d+)", Path("/proc/self/status").read_text())  # of this process alone
    assert kibibytes is not None
    return {"seconds": seconds, "peak_bytes": float(kibibytes[1]) * 1024}


def in_a_process(job: str, path: Path, formats: list[str]) -> dict[str, float]:
    command = [sys.executable, __file__, "--job", job, "--file", str(path), "--formats", ",".join(formats)]
    told = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout
    found: dict[str, float] = json.loads(told)
    return found


def table(results: dict[str, dict[str, float]], mebibytes: int, formats: list[str]) -> str:
    names = {
        "stream": "limit: stream every value once",
        "load": "peer: load_file and a float32 copy",
        "measure": f"fewbits: measure {len(formats)} formats",
    }
    lines = [f"{'':<36}{'seconds':>9}{'to peer':>9}{'MiB/s':>9}{'peak MiB':>10}{'to peer':>9}"]
    peer = results["load"]
    for job, name in names.items():
        seconds, peak = results[job]["seconds"], results[job]["peak_bytes"]
        lines.append(
            f"{name:<36}{seconds:>9.2f}{seconds / peer['seconds']:>9.2f}{mebibytes / seconds:>9.1f}"
            f"{peak / MEBI:>10.0f}{peak / peer['peak_bytes']:>9.2f}"
        )
    return "\n".join(lines)


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--mebibytes", type=int, default=1024, help="size of the checkpoint (default 1024)")
    parser.add_argument("--formats", default=",".join(CHECKPOINT_FORMATS), help="default: those of compare")
    parser.add_argument("--json", type=Path, help="write the figures here too")
    parser.add_argument("--job", choices=("stream", "load", "measure"), help=argparse.SUPPRESS)
    parser.add_argument("--file", type=Path, help=argparse.SUPPRESS)
    given = parser.parse_args()
    formats = given.formats.split(",")
    if given.job:
        print(json.dumps(run(given.job, given.file, formats)))
        return 0
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model.safetensors"
        write_checkpoint(path, given.mebibytes)
        results = {job: in_a_process(job, path, formats) for job in ("stream", "load", "measure")}
    each = results["measure"]["seconds"] / (given.mebibytes * MEBI / 2) / len(formats) * 1e9
    bound = PROMISE * max(given.mebibytes, 256)  # an interpreter with torch takes some 250 MiB by itself
    kept = results["measure"]["peak_bytes"] <= bound * MEBI
    print(f"a checkpoint of {given.mebibytes} MiB in BF16, {torch.get_num_threads()} threads")
    print(table(results, given.mebibytes, formats))
    print(f"{each:.1f} ns for each value and format; within {bound} MiB: {'yes' if kept else 'NO'}")
    if given.json:
        sizes = {"mebibytes": given.mebibytes, "formats": len(formats)}
        figures: dict[str, Any] = {
            "machine": machine(),
            "within_bound": kept,
            "rows": [{"job": job, **sizes, **found} for job, found in results.items()],
        }
        given.json.write_text(json.dumps(figures, indent=2) + "\n")
    return 0 if kept else 1


if __name__ == "__main__":
    sys.exit(main())
