"""How much memory do packed activations save between the forward and the backward pass?

A transformer of about ten million parameters, 16 sequences of 256 bytes. Counted are the bytes of all
storages that the graph behind the loss holds on to, parameters left out: also what PyTorch's own functions
keep, which no recipe narrows.
Peers: the same recipe with ``pack_activations=False``, in the same process; and FP32. Time is that of forward
and backward, alternating, medians.

    python benchmarks/kept_activations.py [--batch 16] [--length 256] [--rounds 5] [--json FILE]
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from _alternating import arguments, seconds, table, write
from torch import nn

from fewbits.nn import prepare
from fewbits.train.tasks.bytes_model import ByteModel, Shape, next_byte_loss

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from tests.nn.graphs import kept_bytes

RECIPES = ("mxfp8", "mxfp6", "mxfp4", "mx9")
SHAPE = Shape(width=384, layers=6, hidden=1536, heads=6)  # 10.8 million parameters


def mib(model: nn.Module, windows: torch.Tensor) -> float:
    """Return the MiB that wait for the backward pass."""
    return kept_bytes(next_byte_loss(model, windows).mean(), model.parameters()) / 2**20


def step_of(model: nn.Module, windows: torch.Tensor) -> Callable[[], None]:
    """Return a function that computes gradients."""

    def step() -> None:
        model.zero_grad()
        next_byte_loss(model, windows).mean().backward()

    return step


def main() -> None:
    """Print the table and write the figures."""
    given = arguments(__doc__ or "", batch=16, length=256)
    windows = torch.randint(256, (given.batch, given.length + 1))
    names = [n for n in given.formats.split(",") if n] or list(RECIPES)
    models = {(n, p): prepare(ByteModel(SHAPE), n, pack_activations=p) for n in names for p in (True, False)}
    memory = {key: mib(model, windows) for key, model in models.items()}
    taken = seconds({str(key): step_of(model, windows) for key, model in models.items()}, given.rounds)
    rows: list[dict[str, Any]] = [
        {
            "recipe": name,
            "wide_mib": memory[name, False],
            "packed_mib": memory[name, True],
            "memory_ratio": memory[name, True] / memory[name, False],
            "time_ratio": taken[str((name, True))] / taken[str((name, False))],
        }
        for name in names
    ]
    print(f"FP32 keeps {mib(ByteModel(SHAPE), windows):.1f} MiB; batch {given.batch}, length {given.length}")
    table(("recipe", "MiB wide", "MiB packed", "of wide", "time of wide"), [tuple(r.values()) for r in rows])
    write(given.json, rows)


if __name__ == "__main__":
    main()
