"""The built-in tasks: small models and the data to train them on."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from fewbits.errors import ArgumentError
from fewbits.train.tasks.bytes_model import Shape
from fewbits.train.tasks.bytes_task import BytesConfig, bytes_task
from fewbits.train.tasks.digits_task import DigitsConfig, digits_task
from fewbits.train.tasks.faint_task import faint_task
from fewbits.train.tasks.lstm_model import LSTMShape
from fewbits.train.tasks.mnist_task import mnist_task
from fewbits.train.tasks.task import Batch, Hyperparameters, Task
from fewbits.train.tasks.user_model import is_user_model, user_task

__all__ = ["TASKS", "Batch", "Hyperparameters", "Task", "bytes_task", "digits_task", "task"]

TASKS = ("bytes", "lstm", "digits", "faint", "mnist10k")  # built in
MODELS = ("lstm",)  # built in, of the text of a task
SIZES = ("small", "base")
_BASE_BYTES = BytesConfig(
    shape=Shape(width=256, layers=4, hidden=1024),
    hyper=Hyperparameters(steps=2000, batch_size=32, lr=4e-3, weight_decay=0.2),
    window=128,
)
_LSTM = BytesConfig(
    shape=LSTMShape(), hyper=Hyperparameters(steps=600, batch_size=16, lr=2e-2, weight_decay=0.1)
)
_BASE_LSTM = BytesConfig(
    shape=LSTMShape(embedding=128, hidden=512, layers=2),
    hyper=Hyperparameters(steps=2000, batch_size=32, lr=4e-3, weight_decay=0.1),
    window=128,
)
_BASE_DIGITS = DigitsConfig(channels=64, hyper=Hyperparameters(steps=800, batch_size=64, lr=5e-3))


def task(name: str, size: str = "small", model: str = "") -> Task:
    """Return a task by name, of one of two sizes.

    Args:
        name: ``bytes``, ``lstm``, ``digits``, ``faint``, ``mnist10k``, the path of a text, a file or a
            folder, or ``MODULE:FUNCTION`` of a model of your own (:mod:`fewbits.train.tasks.user_model`).
        size: ``small``, seconds on two cores, or ``base``, minutes; a model of your own has one.
        model: ``lstm`` in the place of the transformer, for ``bytes`` and texts; ``""``: as the task says.

    Raises:
        ArgumentError: there is no such task, path, model or size, or a size of a model of your own.
        DataError: data cannot be read or is too short.
        MissingDependencyError: ``digits`` without scikit-learn.
    """
    if size not in SIZES:
        raise ArgumentError(f"size={size!r} is unknown; expected {' or '.join(SIZES)}")
    if model not in ("", *MODELS):
        raise ArgumentError(f"model={model!r} is unknown; expected {', '.join(MODELS)} or MODULE:FUNCTION")
    if model and (is_user_model(name) or name in ("digits", "faint", "mnist10k")):
        raise ArgumentError(
            f"model {model!r} reads text, and task {name!r} has none; give bytes, or the path of a text"
        )
    if is_user_model(name):
        if size != "small":
            raise ArgumentError(f"size={size!r} does nothing for {name}, which is your own; leave it out")
        return user_task(name)
    base = size == "base"
    if name == "digits":
        chosen = digits_task(_BASE_DIGITS if base else None)
    elif name == "faint":
        chosen = faint_task()
    elif name == "mnist10k":
        chosen = mnist_task(64 if base else 16)
    elif name in ("bytes", "lstm") or (name and Path(name).exists()):
        small, large = (_LSTM, _BASE_LSTM) if "lstm" in (name, model) else (BytesConfig(), _BASE_BYTES)
        chosen = bytes_task(None if name in ("bytes", "lstm") else Path(name), large if base else small)
    else:
        raise ArgumentError(
            f"there is no task {name!r}, and no such file or folder; expected {', '.join(TASKS)}, a text or"
            " MODULE:FUNCTION"
        )
    return replace(chosen, single_thread=not base)
