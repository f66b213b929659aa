"""How much of what rounding to a format costs do chosen weights give back?

The byte-level language model of the tasks, trained in FP32, its linear layers cast to a format without
training: rounded to nearest (the peer), and chosen by each method on text that the model was trained on. The
loss is that on held-out text, in nats per byte; `closed` is the part of the gap between rounding and FP32
that a method closes, paired by seed, with the seeds' standard deviation. With `--activation` the layers'
inputs are rounded too.

    python benchmarks/ptq.py [--seeds 3] [--formats mxfp4] [--activation FORMAT] [--json FILE]
"""

from __future__ import annotations

import argparse
import copy
from dataclasses import replace
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

import torch
from _alternating import table, write

from fewbits.ptq import quantize_model
from fewbits.train import fp32_model
from fewbits.train.tasks import task as read_task
from fewbits.train.tasks.bytes_task import BytesConfig, nats_per_byte
from fewbits.train.tasks.text import library_text

METHODS: dict[str, dict[str, Any]] = {
    "round": {"method": "round"},
    "round, scales searched": {"method": "round", "scale": "search"},
    "gpfq": {"method": "gpfq"},
    "gptq": {"method": "gptq"},
    "gptq, scales searched": {"method": "gptq", "scale": "search"},
    "round, Hadamard": {"method": "round", "hadamard": 128},
    "gptq, Hadamard": {"method": "gptq", "hadamard": 128},
    "gptq, searched, Hadamard": {"method": "gptq", "scale": "search", "hadamard": 128},
}
BATCHES, WINDOWS = 32, 16  # of calibration: 32768 bytes
EVALUATED = 64  # batches of held-out windows: 32768 bytes


def closed(loss: float, rounding: float, exact: float) -> float:
    """Return the part of the gap between rounding and FP32 that is closed."""
    return (rounding - loss) / (rounding - exact)


def losses(seed: int, fmt: str, activation: str | None) -> dict[str, float]:
    """Return the held-out loss in FP32 and by each method."""
    task, sizes = read_task("bytes"), replace(BytesConfig(), batches=EVALUATED)
    text = torch.frombuffer(bytearray(library_text().held_out), dtype=torch.uint8)
    random = torch.Generator().manual_seed(1000 + seed)
    batches = [task.draw_batch(random, WINDOWS)[0][:, :-1] for _ in range(BATCHES)]
    wide = fp32_model(task, seed)
    found = {"fp32": nats_per_byte(wide, text, sizes)}
    for name, how in METHODS.items():
        model, _ = quantize_model(copy.deepcopy(wide), batches, fmt, activation=activation, **how)
        found[name] = nats_per_byte(model, text, sizes)
        print(seed, fmt, name, found[name], flush=True)
    return found


def rows_of(fmt: str, seeds: int, activation: str | None) -> list[dict[str, Any]]:
    """Return one row for each method."""
    runs = [losses(seed, fmt, activation) for seed in range(seeds)]
    rows = []
    for name in ("fp32", *METHODS):
        parts = [closed(run[name], run["round"], run["fp32"]) for run in runs]
        rows.append(
            {
                "format": fmt,
                "activation": activation or "fp32",
                "method": name,
                "nats": fmean(run[name] for run in runs),
                "millinats_above": 1000 * fmean(run[name] - run["fp32"] for run in runs),
                "closed": fmean(parts),
                "spread": stdev(parts) if seeds > 1 else 0.0,
                "worst": min(parts),
                "by_seed": [run[name] for run in runs],
            }
        )
    return rows


def main() -> None:
    """Print the table and write the figures."""
    made = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    made.add_argument("--seeds", type=int, default=3, help="default 3")
    made.add_argument("--formats", default="mxfp4", help="comma-separated")
    made.add_argument("--activation", help="format of the layers' inputs; default: FP32")
    made.add_argument("--json", type=Path, help="write the figures here too")
    given = made.parse_args()
    torch.set_num_threads(1)  # layers so small that a second thread costs more than it gives
    rows = [row for fmt in given.formats.split(",") for row in rows_of(fmt, given.seeds, given.activation)]
    shown = ("format", "activation", "method", "millinats_above", "closed", "spread", "worst")
    table(shown, [tuple(row[name] for name in shown) for row in rows])
    write(given.json, rows)


if __name__ == "__main__":
    main()
