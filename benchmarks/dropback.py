"""How well does a model train that may track only so many of its weights?

Perceptrons on digits (64-128-128-10) and on mnist10k (784-300-100-10), plain SGD as published, its rate
halved after each quarter. Peer: torch.optim.SGD from the same initial values. Accuracy is the mean of the
seeds, with their standard deviation. At some ratios also: the tracked set frozen after a quarter; momentum of
0.9 at a tenth of the rate, with a velocity for tracked weights alone, and with one for all weights; and the
control, in which a weight that is not tracked becomes zero instead of its initial value.

    python benchmarks/dropback.py [--seeds 3] [--tasks digits,mnist10k] [--json FILE]

A task whose data are not there is left out by name; mnist10k reads the folder that FEWBITS_DATA names.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from itertools import pairwise
from statistics import fmean, stdev
from typing import Any

import torch
from _alternating import table, write
from _tasks import available, parser
from torch import nn
from torch.nn.utils import parameters_to_vector, vector_to_parameters

from fewbits.sparsity import DropBack
from fewbits.train.tasks import Task

WIDTHS = {"digits": (64, 128, 128, 10), "mnist10k": (784, 300, 100, 10)}
STEPS = {"digits": 1500, "mnist10k": 1500}  # of 64 images: some 60 epochs of digits, 12 of mnist10k
RATIOS = (1, 2, 5, 10, 25, 50)
EXAMINED = (10, 50)  # ratios at which the variants are trained too
RATE, MOMENTUM = 0.2, 0.9

Step = Callable[[int, float], None]  # the step, of all steps


def perceptron(widths: tuple[int, ...]) -> nn.Sequential:
    """Return linear layers with ReLU between them."""
    layers: list[nn.Module] = [nn.Flatten()]
    for n, m in pairwise(widths):
        layers += [nn.Linear(n, m), nn.ReLU()]
    return nn.Sequential(*layers[:-1])


def initial(widths: tuple[int, ...], seed: int) -> nn.Sequential:
    """Return a plain model with the initial values that DropBack draws."""
    plain = perceptron(widths)
    plain.load_state_dict(DropBack(perceptron(widths), 1, lr=1, seed=seed).dense_parameters())
    return plain


def accuracy(
    task: Task, model: nn.Module, optimizer: Any, seed: int, after: Callable[[float], None]
) -> float:
    """Train a model and return its accuracy; ``after`` is called with the share of it that is done."""
    steps, random = STEPS[task.name], torch.Generator().manual_seed(seed)
    rate = optimizer.param_groups[0]["lr"]
    for i in range(steps):
        optimizer.param_groups[0]["lr"] = rate * 0.5 ** (4 * i // steps)
        optimizer.zero_grad()
        task.loss(model, task.draw_batch(random, task.hyper.batch_size)).backward()
        optimizer.step()
        after((i + 1) / steps)
    return task.evaluate(model)


def tracked(task: Task, seed: int, budget: int, *, momentum: float = 0, freeze: bool = False) -> float:
    """Return the accuracy with DropBack."""
    model = perceptron(WIDTHS[task.name])
    optimizer = DropBack(model, budget, lr=RATE * (1 - momentum), momentum=momentum, seed=seed)

    def after(done: float) -> None:
        if freeze and done >= 0.25:
            optimizer.freeze()

    return accuracy(task, model, optimizer, seed, after)


def dense(task: Task, seed: int, budget: int, *, momentum: float = 0, zero: bool = False) -> float:
    """Return the accuracy with all weights and their velocities in memory, of which ``budget`` stay."""
    model = initial(WIDTHS[task.name], seed)
    start = parameters_to_vector(model.parameters()).detach().clone()
    optimizer = torch.optim.SGD(model.parameters(), lr=RATE * (1 - momentum), momentum=momentum)

    @torch.no_grad()
    def after(_: float) -> None:
        now = parameters_to_vector(model.parameters())
        kept = (now - start).abs().topk(budget).indices
        rest = torch.zeros_like(start) if zero else start.clone()
        rest[kept] = now[kept]
        vector_to_parameters(rest, model.parameters())

    return accuracy(task, model, optimizer, seed, after if budget < len(start) else lambda _: None)


def measured(run: Callable[..., float], seeds: int) -> tuple[float, float]:
    """Return the mean and the standard deviation over seeds."""
    values = [run(seed) for seed in range(seeds)]
    return fmean(values), stdev(values) if seeds > 1 else 0.0


def rows_of(task: Task, seeds: int) -> list[dict[str, Any]]:
    """Return one row for each ratio, the peer first."""
    weights = sum((n + 1) * m for n, m in pairwise(WIDTHS[task.name]))
    mean, spread = measured(lambda seed: dense(task, seed, weights), seeds)
    rows: list[dict[str, Any]] = [
        {"task": task.name, "ratio": "SGD", "tracked": weights, "accuracy": mean, "spread": spread}
    ]
    for ratio in RATIOS:
        budget = weights // ratio
        mean, spread = measured(lambda seed, k=budget: tracked(task, seed, k), seeds)
        row = {"task": task.name, "ratio": ratio, "tracked": budget, "accuracy": mean, "spread": spread}
        if ratio in EXAMINED:
            variants = {
                "frozen": partial(tracked, freeze=True),
                "momentum": partial(tracked, momentum=MOMENTUM),
                "momentum_of_all": partial(dense, momentum=MOMENTUM),
                "zero": partial(dense, zero=True),
            }
            for name, run in variants.items():
                found = measured(lambda seed, run=run, k=budget: run(task, seed, k), seeds)
                row |= {name: found[0], f"{name}_spread": found[1]}
        rows.append(row)
    return rows


def main() -> None:
    """Print the table and write the figures."""
    given = parser(__doc__ or "", tasks="digits,mnist10k").parse_args()
    torch.set_num_threads(1)  # layers so small that a second thread costs more than it gives
    rows: list[dict[str, Any]] = []
    for task in available(given.tasks):
        rows += rows_of(task, given.seeds)
    shown = (
        "task",
        "ratio",
        "tracked",
        "accuracy",
        "spread",
        "frozen",
        "momentum",
        "momentum_of_all",
        "zero",
    )
    table(shown, [tuple(row.get(name) for name in shown) for row in rows])
    write(given.json, rows)


if __name__ == "__main__":
    main()
