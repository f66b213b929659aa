"""Does a choice of formats for a budget lose less than every single format of as few bits?

The byte-level language model of the tasks, trained in FP32, its tensors cast without training: each castable
tensor in the format that `fewbits compare MODEL --budget` proposes, with the sensitivities of the model and
without, beside all of them in one format of at most as many bits. The loss is that on held-out text, in nats
per byte. Differences from the proposal are paired by seed; a margin is half of a 95 % interval.

    python benchmarks/budget.py [--seeds 3] [--budget 4.5] [--json FILE]
"""

from __future__ import annotations

import argparse
import copy
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from statistics import fmean
from types import ModuleType
from typing import Any

import torch
from _alternating import table, write
from torch import nn

import fewbits as fb
from fewbits.compare import measure_checkpoint
from fewbits.evidence import paired
from fewbits.files import save_file
from fewbits.files.matrix_view import matrix_shape
from fewbits.train import fp32_model
from fewbits.train.tasks import task as read_task
from fewbits.train.tasks.bytes_task import BytesConfig, nats_per_byte
from fewbits.train.tasks.text import library_text

SINGLE = ("mx4", "mxfp4", "nvfp4", "msfp12", "vsq4", "int4_channel", "int4_tensor")
OTHERS = (
    "block(element=int(2),scale=e8m0,size=32)", "block(element=int(3),scale=e8m0,size=32)",
    "block(element=float(e=2,m=0),scale=e8m0,size=32)", "block(element=int(5),scale=e8m0,size=32)",
    "mx6", "mxfp6_e2m3", "mxint8",
)  # fmt: skip
PROBED, WINDOWS = 4, 16  # batches of training text on which sensitivities are measured: 4096 bytes
EVALUATED = 64  # batches of held-out windows: 32768 bytes


def rounded(wide: nn.Module, formats: Mapping[str, str]) -> nn.Module:
    """Return a copy of a model with some of its tensors rounded as cast rounds them."""
    model = copy.deepcopy(wide)
    for name, p in model.named_parameters():
        if name in formats:
            rows = p.data.reshape(matrix_shape(tuple(p.shape)))
            p.data = fb.fake_quantize(rows, formats[name], axis=-1).view(p.shape)
    return model


def losses(seed: int, budget: float) -> dict[str, float]:
    """Return the held-out loss of one seed by choice of formats."""
    task, sizes = read_task("bytes"), replace(BytesConfig(), batches=EVALUATED)
    text = torch.frombuffer(bytearray(library_text().held_out), dtype=torch.uint8)
    wide = fp32_model(task, seed)
    random = torch.Generator().manual_seed(1000 + seed)
    batches = [(task.draw_batch(random, WINDOWS)[0][:, :-1],) for _ in range(PROBED)]
    place = ModuleType("the_model")
    place.__dict__["probe"] = lambda: (copy.deepcopy(wide), batches)
    sys.modules["the_model"] = place
    found = {"fp32": nats_per_byte(wide, text, sizes)}
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model.safetensors"
        save_file({name: p.detach().contiguous() for name, p in wide.named_parameters()}, path)
        for name, model in (("chosen by the model", "the_model:probe"), ("chosen by QSNR", None)):
            report = measure_checkpoint(path, (*SINGLE, *OTHERS), budget=budget, model=model)
            castable = {t.tensor: t.proposed for t in report.tensors if t.castable}
            chosen = {tensor: proposed for tensor, proposed in castable.items() if proposed}
            found[name] = nats_per_byte(rounded(wide, chosen), text, sizes)
            assert report.proposed_bits_per_value <= budget
    for single in SINGLE:
        if fb.format(single).bits_per_value <= budget:
            found[single] = nats_per_byte(rounded(wide, dict.fromkeys(castable, single)), text, sizes)
    print(seed, found, file=sys.stderr, flush=True)
    return found


def rows_of(seeds: int, budget: float) -> list[dict[str, Any]]:
    """Return one row for each choice, beside the proposal."""
    runs = [losses(seed, budget) for seed in range(seeds)]
    rows = []
    for name in runs[0]:
        values, proposal = ([run[key] for run in runs] for key in (name, "chosen by the model"))
        above = paired(values, proposal)
        rows.append(
            {
                "choice": name,
                "nats": fmean(values),
                "above_fp32": fmean(run[name] - run["fp32"] for run in runs),
                "above_proposal": above.mean,
                "margin": above.margin,
                "worse": bool(above.differs and above.mean > 0),
                "by_seed": values,
            }
        )
    return rows


def main() -> None:
    """Print the table and write the figures."""
    made = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    made.add_argument("--seeds", type=int, default=3, help="default 3")
    made.add_argument("--budget", type=float, default=4.5, help="bits per value; default 4.5")
    made.add_argument("--json", type=Path, help="write the figures here too")
    given = made.parse_args()
    torch.set_num_threads(1)  # layers so small that a second thread costs more than it gives
    rows = rows_of(given.seeds, given.budget)
    shown = ("choice", "nats", "above_fp32", "above_proposal", "margin", "worse")
    table(shown, [tuple(f"{r[k]:.4f}" if isinstance(r[k], float) else r[k] for k in shown) for r in rows])
    write(given.json, rows)


if __name__ == "__main__":
    main()
