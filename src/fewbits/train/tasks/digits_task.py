"""The task "digits": recognize scikit-learn's 8 x 8 handwritten digits with a small convolutional network."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from fewbits.errors import MissingDependencyError
from fewbits.train.tasks.cache import cache_path
from fewbits.train.tasks.digits_model import DigitModel
from fewbits.train.tasks.task import Batch, Hyperparameters, Task, created


@dataclass(frozen=True)
class DigitsConfig:
    """Every size of the task. The defaults fit a demonstration on two cores."""

    channels: int = 32
    hyper: Hyperparameters = field(default_factory=lambda: Hyperparameters(steps=400, batch_size=32, lr=1e-2))
    trained: int = 900  # images to train on, the first ones; the other 897 are held out


@dataclass(frozen=True)
class Digits:
    """Images, float32 ``(n, 1, side, side)`` from 0 to 1, and what each shows, int64 ``(n,)``."""

    images: Tensor
    labels: Tensor


@dataclass(frozen=True)
class DigitsScore:
    """How well held-out digits are recognized."""

    nll: float  # nats per image
    accuracy: float  # percent


def digits_task(config: DigitsConfig | None = None) -> Task:
    """Return the vision task.

    Raises:
        MissingDependencyError: scikit-learn, which brings the images, is not installed.
    """
    sizes = config or DigitsConfig()
    train_set, held_out = train_and_held_out(sizes.trained)

    def path(seed: int) -> Path:
        data = train_set.images.numpy().tobytes() + train_set.labels.numpy().tobytes()
        return cache_path("digits", seed, asdict(sizes), data)

    create = partial(DigitModel, sizes.channels)
    return replace(images_task("digits", create, train_set, held_out, sizes.hyper), cache_path=path)


def train_and_held_out(trained: int = 900) -> tuple[Digits, Digits]:
    """Return the first digits, to train on, and the others.

    Raises:
        MissingDependencyError: scikit-learn, which brings the images, is not installed.
    """
    digits = _digits()
    return Digits(digits.images[:trained], digits.labels[:trained]), Digits(
        digits.images[trained:], digits.labels[trained:]
    )


def images_task(
    name: str,
    create: Callable[[], nn.Module],
    train_set: Digits,
    held_out: Digits,
    hyper: Hyperparameters,
) -> Task:
    """Return the task to tell from an image which of ten digits it shows."""
    return Task(
        name=name,
        metric="accuracy",
        lower_is_better=False,
        create=partial(created, create),
        draw_batch=partial(drawn, digits=train_set),
        loss=digits_loss,
        evaluate=lambda model: score(model, held_out).accuracy,
        hyper=hyper,
        resolution=100 / len(held_out.labels),
        single_thread=True,
    )


def score(model: nn.Module, digits: Digits, *, batches: int = 8) -> DigitsScore:
    """Return the model's likelihood and accuracy on ``digits``, dealt out in turn to ``batches``."""
    nll, right = 0.0, 0
    with torch.no_grad():
        for batch in range(batches):
            labels = digits.labels[batch::batches]
            logits = model(digits.images[batch::batches])
            nll += float(functional.cross_entropy(logits, labels, reduction="none").double().sum())
            right += int((logits.argmax(-1) == labels).sum())
    count = len(digits.labels)
    return DigitsScore(nll / count, 100 * right / count)


def drawn(generator: torch.Generator, count: int, *, digits: Digits) -> Batch:
    """Return ``count`` images and their labels."""
    chosen = torch.randint(len(digits.labels), (count,), generator=generator)
    return digits.images[chosen], digits.labels[chosen]


def digits_loss(model: nn.Module, batch: Batch) -> Tensor:
    """Return the mean cross-entropy, in nats per image."""
    images, labels = batch
    return functional.cross_entropy(model(images), labels)


def _digits() -> Digits:
    try:
        from sklearn.datasets import load_digits
    except ImportError:
        raise MissingDependencyError(
            "the digits task needs scikit-learn, which is not installed: pip install 'fewbits[tasks]', "
            "or leave the task digits out"
        ) from None
    digits = load_digits()
    images = torch.from_numpy(digits.images.astype(np.float32) / 16)
    return Digits(images[:, None], torch.from_numpy(digits.target.astype(np.int64)))
