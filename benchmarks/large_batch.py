"""Does training hold its accuracy when a batch is half of the data set?

Digits, 900 images, sixty epochs each, a linear warm-up over a tenth of the steps and polynomial decay of
power 2 for all. Peer: SGD with momentum and batches of 32, at its best of some rates. In batches of 450: SGD
at that rate times 450 / 32, which is the linear scaling rule; SGD at its best of some rates; LARS in FP32;
and the recipe `lars`, which trains as Jia et al. (2018) do: FP16 forward and backward, FP32 master weights
and LARS, a loss scale. A batch holds the accuracy if it loses no more than twice the spread of the peer over
seeds, or half a point, whichever is more; the margin is that of a 95 % interval of paired differences.

    python benchmarks/large_batch.py [--seeds 3] [--json FILE]
"""

from __future__ import annotations

import math
from dataclasses import replace
from functools import partial
from statistics import fmean, stdev
from typing import Any

from _alternating import table, write
from _training import accuracy, arguments, tried

from fewbits.evidence import paired
from fewbits.train.tasks.digits_task import DigitsConfig, digits_task

SMALL, LARGE, IMAGES, EPOCHS = 32, 450, 900, 60
SGD, LARS = (f"fp32:optimizer={name},lr_schedule=polynomial" for name in ("sgd", "lars"))
SMALL_RATES = (0.02, 0.05, 0.1)
LARGE_RATES = (0.025, 0.05, 0.1, 0.2)
LARS_RATES = (0.03, 0.05, 0.07)
ENOUGH = 0.5  # points
TASK = digits_task(DigitsConfig(channels=16, trained=IMAGES))


def trained(recipe: str, batch: int, lr: float, seed: int) -> float:
    """Train without clipping, which would hide what a rate does, and return the accuracy in percent."""
    steps = EPOCHS * IMAGES // batch
    hyper = replace(TASK.hyper, steps=steps, batch_size=batch, lr=lr, max_norm=math.inf)
    return accuracy(replace(TASK, hyper=hyper), recipe, seed)


def best(name: str, recipe: str, batch: int, rates: tuple[float, ...], seeds: int) -> dict[str, Any]:
    """Return the row of the rate with the highest mean accuracy."""
    lr, found = tried(partial(trained, recipe, batch), rates, seeds)
    print(f"{name}, {batch}: " + ", ".join(f"{fmean(v):.2f} at {rate:g}" for rate, v in found.items()))
    return {"training": name, "recipe": recipe, "batch": batch, "lr": lr, "values": found[lr], "tried": found}


def rows_of(seeds: int) -> list[dict[str, Any]]:
    """Return a row for each way to train, with its differences from small batches."""
    peer = best("SGD", SGD, SMALL, SMALL_RATES, seeds)
    rows = [
        peer,
        best("SGD, scaled rate", SGD, LARGE, (peer["lr"] * LARGE / SMALL,), seeds),
        best("SGD, best rate", SGD, LARGE, LARGE_RATES, seeds),
        best("LARS", LARS, LARGE, LARS_RATES, seeds),
        best("recipe lars", "lars", LARGE, LARS_RATES, seeds),
    ]
    for row in rows:
        row |= {"accuracy": fmean(row["values"]), "spread": stdev(row["values"]) if seeds > 1 else 0.0}
        if row is not peer:
            found = paired(row["values"], peer["values"], TASK.resolution)
            row |= {"less_small": found.mean, "margin": found.margin if seeds > 1 else None}
            row["holds"] = found.mean >= -max(2 * peer["spread"], ENOUGH)
    return rows


def main() -> None:
    """Print the table and write the figures."""
    given = arguments(__doc__ or "")
    rows = rows_of(given.seeds)
    shown = ("training", "batch", "lr", "accuracy", "spread", "less_small", "margin", "holds")
    table(shown, [tuple(row.get(name) for name in shown) for row in rows])
    write(given.json, rows)


if __name__ == "__main__":
    main()
