"""The tasks "bytes" and "lstm": predict source text byte by byte, by a transformer or an LSTM."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path

import torch
from torch import Tensor, nn

from fewbits.train.tasks.bytes_model import ByteModel, Shape, next_byte_loss, windows_at
from fewbits.train.tasks.cache import cache_path
from fewbits.train.tasks.lstm_model import ByteLSTM, LSTMShape
from fewbits.train.tasks.task import Batch, Hyperparameters, Task, created
from fewbits.train.tasks.text import HELD_OUT, library_text, own_text


@dataclass(frozen=True)
class BytesConfig:
    """Every size of the task. The defaults fit a demonstration on two cores."""

    shape: Shape | LSTMShape = field(default_factory=Shape)
    hyper: Hyperparameters = field(
        default_factory=lambda: Hyperparameters(steps=600, batch_size=16, lr=1.4e-2, weight_decay=0.2)
    )
    window: int = 64  # bytes predicted in a row
    batches: int = 8  # of evaluation; windows are dealt out in turn, so that the first is like all of them
    evaluated: int = 8  # windows in a batch of evaluation

    @property
    def least_bytes(self) -> int:
        """Bytes of text with which the held-out windows do not overlap."""
        return HELD_OUT * self.batches * self.evaluated * (self.window + 1)


def bytes_task(data: Path | None = None, config: BytesConfig | None = None) -> Task:
    """Return a language task, on Python's own library or on the user's text.

    Args:
        data: a text file or a folder of text files; default: the source of Python's standard library.
        config: sizes, whose shape says which model; default: those of the demonstration.

    Raises:
        DataError: the text cannot be read or is too short.
    """
    sizes = config or BytesConfig()
    text = library_text() if data is None else own_text(data, least=sizes.least_bytes)
    name, create = _model(sizes.shape)
    train_text, held_out = _tensor(text.train), _tensor(text.held_out)

    def path(seed: int) -> Path:
        # The size of the evaluation is left out: it does not change the model.
        key = {"shape": asdict(sizes.shape), "hyper": asdict(sizes.hyper), "window": sizes.window}
        return cache_path(name, seed, key, text.train)

    return Task(
        name=name,
        metric="nll",
        lower_is_better=True,
        create=partial(created, create),
        draw_batch=partial(_windows, text=train_text, window=sizes.window),
        loss=_loss,
        evaluate=lambda model: nats_per_byte(model, held_out, sizes),
        hyper=sizes.hyper,
        single_thread=True,
        cache_path=path,
    )


def _model(shape: Shape | LSTMShape) -> tuple[str, Callable[[], nn.Module]]:
    """Return the name of the task, and what creates its model."""
    if isinstance(shape, LSTMShape):
        return "lstm", partial(ByteLSTM, shape)
    return "bytes", partial(ByteModel, shape)


def nats_per_byte(model: nn.Module, held_out: Tensor, config: BytesConfig) -> float:
    """Return the model's mean loss in nats on windows spread evenly over ``held_out``, uint8 ``(n,)``."""
    count = config.batches * config.evaluated
    last = len(held_out) - config.window - 1
    starts = torch.arange(count) * last // max(count - 1, 1)
    total = 0.0
    with torch.no_grad():
        for batch in range(config.batches):
            windows = windows_at(held_out, starts[batch :: config.batches], config.window + 1)
            total += float(next_byte_loss(model, windows).double().sum())
    return total / (count * config.window)


def _windows(generator: torch.Generator, count: int, *, text: Tensor, window: int) -> Batch:
    starts = torch.randint(len(text) - window, (count,), generator=generator)
    return (windows_at(text, starts, window + 1),)


def _loss(model: nn.Module, batch: Batch) -> Tensor:
    (windows,) = batch
    return next_byte_loss(model, windows).mean()


def _tensor(text: bytes) -> Tensor:
    return torch.frombuffer(bytearray(text), dtype=torch.uint8)
