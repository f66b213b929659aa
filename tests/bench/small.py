"""A benchmark of milliseconds: which of two classes a point belongs to."""

from dataclasses import replace

import torch
from torch import Tensor, nn

from fewbits.bench import Benchmark
from fewbits.train import Hyperparameters, Task

POINTS = torch.randn(256, 16, generator=torch.Generator().manual_seed(1))
LABELS = (POINTS[:, :4].sum(1) > 0).long()


def create(seed: int) -> nn.Module:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 2))


def draw_batch(generator: torch.Generator, size: int) -> tuple[Tensor, ...]:
    chosen = torch.randint(192, (size,), generator=generator)
    return POINTS[chosen], LABELS[chosen]


def loss(model: nn.Module, batch: tuple[Tensor, ...]) -> Tensor:
    return nn.functional.cross_entropy(model(batch[0]), batch[1])


@torch.no_grad()
def evaluate(model: nn.Module) -> float:
    return float(loss(model, (POINTS[192:], LABELS[192:])))


def task() -> Task:
    hyper = Hyperparameters(steps=160, batch_size=16, lr=3e-3)
    return Task("points", "loss", True, create, draw_batch, loss, evaluate, hyper, single_thread=True)


def benchmark() -> Benchmark:
    return Benchmark("points", "tests.bench.small:task", 0.3, 10, 160, 16, 3e-3, 64, runs=3)


def easy() -> Benchmark:
    """The same until a loss that some twenty steps reach, for what does not ask how many they are."""
    return replace(benchmark(), target=0.6)


def nothing() -> int:
    return 3
