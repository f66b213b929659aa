"""Do small networks of frequency bands, with weights of few bits, do as well as one network of equal bytes?

Chai et al. say two to four times fewer bits, late fusion and fewer parameters; how bands are fused they do
not publish. Digits and, where its files lie, mnist10k. Bands of Haar's wavelets, a small convolutional
network for each with weights in 4 bits (MXFP4) while it trains, answers fused by a linear layer; beside it
one network of the same architecture with the same bytes of weights, in 4 bits, in 8 bits (MXFP8) and in
float32, each as wide as the bytes allow; and the low band alone, in as many bytes, the control.

    python benchmarks/subbands.py [--seeds 3] [--json FILE]
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from statistics import fmean
from typing import Any

from _alternating import table, write
from _training import accuracy, arguments, image_sets
from torch import nn

import fewbits as fb
from fewbits.compare import SubbandModel
from fewbits.evidence import paired
from fewbits.train.tasks.digits_model import DigitModel
from fewbits.train.tasks.digits_task import Digits, images_task
from fewbits.train.tasks.task import Hyperparameters

CHANNELS = 6  # of the network of a band
STEPS = {"digits": 600, "mnist10k": 400}
Create = Callable[[], nn.Module]


def kilobytes(model: nn.Module, format: str) -> float:
    """Return what the weights of a network take."""
    bits = fb.format(format).bits_per_value if format != "fp32" else 32
    return sum(p.numel() for p in model.parameters()) * bits / 8e3


def widest(make: Callable[[int], nn.Module], format: str, most: float) -> Create:
    """Return what makes the widest network that takes at most so many kilobytes."""
    channels = 1
    while kilobytes(make(channels + 1), format) <= most:
        channels += 1
    return partial(make, channels)


def rows_of(name: str, images: Digits, held_out: Digits, side: int, seeds: int) -> list[dict[str, Any]]:
    """Return a row for each way."""
    bands = partial(SubbandModel, lambda: DigitModel(CHANNELS, side // 2), 10)
    most = kilobytes(bands(), "mxfp4")
    alone = lambda channels: DigitModel(channels, side)  # noqa: E731  # of this size
    low = lambda channels: SubbandModel(lambda: DigitModel(channels, side // 2), 10, ("low",))  # noqa: E731
    ways: dict[str, tuple[Create, str]] = {
        "four bands": (bands, "mxfp4"),
        "low band": (widest(low, "mxfp4", most), "mxfp4"),
        **{f"one network, {f}": (widest(alone, f, most), f) for f in ("mxfp4", "mxfp8_e4m3", "fp32")},
    }
    rows: list[dict[str, Any]] = []
    for way, (create, format) in ways.items():
        hyper = Hyperparameters(steps=STEPS[name], batch_size=64, lr=1e-2)
        task = replace(images_task(name, create, images, held_out, hyper), single_thread=True)
        recipe = "fp32" if format == "fp32" else f"mx:weight={format}"
        values = [accuracy(task, recipe, seed) for seed in range(seeds)]
        took = kilobytes(create(), format)
        rows.append(
            {"data": name, "way": way, "kilobytes": took, "accuracy": fmean(values), "values": values}
        )
        found = paired(values, rows[0]["values"], task.resolution)
        rows[-1] |= {"over_bands": found.mean, "low": found.low, "high": found.high}
        print(f"{name}, {way}: {fmean(values):.2f}", flush=True)
    return rows


def main() -> None:
    """Print the table and write the figures."""
    given = arguments(__doc__ or "")
    rows = [row for images in image_sets() for row in rows_of(*images, given.seeds)]
    keys = ("data", "way", "kilobytes", "accuracy", "over_bands", "low", "high")
    table(
        ("data", "way", "kB", "accuracy", "over bands", "from", "to"),
        [tuple(row[key] for key in keys) for row in rows],
    )
    write(given.json, rows)


if __name__ == "__main__":
    main()
