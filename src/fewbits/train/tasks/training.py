"""Train a small model in FP32, the same way each time: AdamW, warm-up, cosine decay; then keep it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import torch
from torch import Tensor, nn

from fewbits.train.tasks import cache
from fewbits.train.tasks.task import Hyperparameters, Progress


def fit(
    model: nn.Module, loss: Callable[[torch.Generator], Tensor], hyper: Hyperparameters, progress: Progress
) -> None:
    """Train ``model`` in place and leave it in eval mode.

    The batches are the same for every seed, so that seeds differ by their initial weights only.

    Args:
        model: in FP32.
        loss: draws a batch from the generator and returns the model's mean loss on it.
        hyper: how long and how hard.
        progress: called after each step.
    """
    generator = torch.Generator().manual_seed(0)
    optimizer = torch.optim.AdamW(
        model.parameters(),
        lr=hyper.learning_rate,
        betas=(0.9, hyper.beta2),
        weight_decay=hyper.weight_decay,
        fused=True,
    )
    schedule = torch.optim.lr_scheduler.OneCycleLR(
        optimizer, hyper.learning_rate, total_steps=hyper.steps, pct_start=0.1, cycle_momentum=False
    )
    model.train()
    with one_thread():
        for step in range(hyper.steps):
            value = loss(generator)
            optimizer.zero_grad()
            value.backward()  # type: ignore[no-untyped-call]
            nn.utils.clip_grad_norm_(model.parameters(), hyper.largest_gradient)
            optimizer.step()
            schedule.step()
            progress(step + 1, hyper.steps, float(value.detach()))
    model.eval()


@contextmanager
def one_thread() -> Iterator[None]:
    """Keep torch on one thread: for models this small a second one costs minutes on a busy machine."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


def created(create: Callable[[], nn.Module], seed: int) -> nn.Module:
    """Return a new model whose initial weights come from ``seed``; torch's generator is left as it was."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return create()


def cached(
    path: Path, create: Callable[[], nn.Module], seed: int, train: Callable[[nn.Module], None]
) -> nn.Module:
    """Return the model that the cache has at ``path``; where it has none, train one and keep it there.

    Args:
        path: from :func:`fewbits.train.tasks.cache.cache_path`.
        create: builds the model with initial weights from torch's global generator, which is left as it was.
        seed: of the initial weights.
        train: trains a model in place.
    """
    model = created(create, seed)
    if not cache.load(model, path):
        train(model)
        cache.save(model, path)
    return model.eval().requires_grad_(False)
