"""How long does a training step take in narrow formats?

A transformer of about ten million parameters, 16 sequences of 256 bytes; one step is forward, backward and
AdamW.
Peers: the same step in FP32, and under torch.autocast to bfloat16; on a GPU also these compiled. All in one
process, alternating, medians. A step whose loss is not finite has no time: its products take other ways.

    python benchmarks/train_step.py [--batch 16] [--length 256] [--rounds 5] [--device cuda] [--json FILE]

The units of the CPU that PyTorch's own products use are limited by ONEDNN_MAX_CPU_ISA; set to AVX512_CORE, no
product runs on bfloat16 units, neither PyTorch's nor ours.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from _alternating import arguments, seconds, table, write

from fewbits.nn import prepare
from fewbits.optim import AdamW
from fewbits.train.tasks.bytes_model import ByteModel, Shape, next_byte_loss

RECIPES = ("fp32", "amp-bf16", "mxfp8", "mxfp6", "mxint8", "mxfp4w-mxfp6_e2m3", "mx9")
# Those that are a recipe with other formats: elements of E2M3 are small integers, those of E3M2 are not.
TEXTS = {"mxfp4w-mxfp6_e2m3": "mxfp4w-mxfp6:activation=mxfp6_e2m3,gradient=mxfp6_e2m3/rceil"}
COMPILED = " compiled"  # by torch.compile
SHAPE = Shape(width=384, layers=6, hidden=1536, heads=6)  # 10.8 million parameters


def step_of(recipe: str, windows: torch.Tensor, losses: dict[str, torch.Tensor]) -> Callable[[], None]:
    """Return a function that trains one step and leaves its loss in ``losses``."""
    torch.manual_seed(0)
    plain = recipe.removesuffix(COMPILED)
    text = TEXTS.get(plain, plain)
    model: Any = prepare(ByteModel(SHAPE), text).to(windows.device)
    model = model if plain == recipe else torch.compile(model)
    optimizer = AdamW(model.parameters(), lr=1e-4, recipe=text)

    def step() -> None:
        optimizer.zero_grad()
        loss = next_byte_loss(model, windows).mean()
        loss.backward()
        optimizer.step()
        losses[recipe] = loss.detach()

    return step


def main() -> None:
    """Print the table and write the figures."""
    given = arguments(__doc__ or "", device=True, batch=16, length=256)
    windows = torch.randint(256, (given.batch, given.length + 1)).to(given.device)
    names = [n for n in given.formats.split(",") if n] or list(RECIPES)
    names += [] if windows.is_cpu else [name + COMPILED for name in ("fp32", "amp-bf16")]
    losses: dict[str, torch.Tensor] = {}
    taken = seconds({name: step_of(name, windows, losses) for name in names}, given.rounds)
    lost = [name for name, loss in losses.items() if not loss.isfinite()]
    if lost:
        raise SystemExit(
            f"the loss of {', '.join(lost)} is not finite after some steps; expected one near log(256)"
        )
    rows: list[dict[str, Any]] = [
        {
            "recipe": name,
            "seconds_per_step": taken[name],
            "of_fp32": taken[name] / taken["fp32"] if "fp32" in taken else None,
        }
        for name in names
    ]
    values = sum(p.numel() for p in ByteModel(SHAPE).parameters())
    print(f"{values / 1e6:.1f} million parameters, batch {given.batch}, length {given.length}")
    table(("recipe", "s per step", "of fp32"), [tuple(r.values()) for r in rows])
    write(given.json, rows)


if __name__ == "__main__":
    main()
