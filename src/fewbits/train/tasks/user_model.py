"""The user's own model, named ``MODULE:FUNCTION``: one contract for ``train``, ``prune`` and ``compare``.

The function takes no argument and returns ``(model, batches)``, or ``(model, batches, loss)`` where a model
is trained or scored:

* ``model``: a :class:`torch.nn.Module` on the CPU, with its weights;
* ``batches``: a list of what the model takes: a tensor, a tuple of arguments, or a mapping of them by name
  (what the loss takes, where there is one);
* ``loss``: called as ``loss(model, batch)``; returns the mean loss as a tensor of one value.

It is called again for each seed, with torch's generator seeded, so that weights which it draws differ.
"""

from __future__ import annotations

import importlib
import inspect
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor, nn

from fewbits.errors import ArgumentError
from fewbits.train.tasks.task import Batch, Hyperparameters, Task, created

UserBatch = Tensor | Sequence[object] | Mapping[str, object]
Loss = Callable[[nn.Module, UserBatch], Tensor]

_USUAL = Hyperparameters(steps=200, batch_size=1, lr=1e-3)  # one of the user's batches in a step


@dataclass(frozen=True)
class UserModel:
    """What the user's function returned."""

    model: nn.Module
    batches: tuple[UserBatch, ...]
    loss: Loss | None = None


def is_user_model(name: str) -> bool:
    """Whether a text has the form ``MODULE:FUNCTION``, as in ``my_models:load``."""
    module, colon, function = name.partition(":")
    return bool(colon) and function.isidentifier() and all(part.isidentifier() for part in module.split("."))


def load_user_model(name: str) -> UserModel:
    """Import a module, from the current folder or installed, and call a function of it.

    Args:
        name: ``MODULE:FUNCTION``, as in ``my_models:load``; the module's code runs.

    Raises:
        ArgumentError: there is no such module or function, or the function returns something else than the
            contract of :mod:`fewbits.train.tasks.user_model` says.
    """
    return _user_model(name, user_function(name)())


def _user_model(name: str, returned: object) -> UserModel:
    """Return what the user's function returned, as a record."""
    parts = list(returned) if isinstance(returned, tuple) else []
    if len(parts) not in (2, 3) or not isinstance(parts[0], nn.Module) or not _are_batches(parts[1]):
        raise ArgumentError(
            f"{name} has to return (model, batches) or (model, batches, loss): a torch.nn.Module, a list of"
            " one batch at least, and a function of (model, batch)"
        )
    if len(parts) == 3 and not callable(parts[2]):
        raise ArgumentError(f"the loss that {name} returns cannot be called; expected loss(model, batch)")
    return UserModel(parts[0], tuple(parts[1]), parts[2] if len(parts) == 3 else None)


def user_task(name: str, hyper: Hyperparameters = _USUAL) -> Task:
    """Return the task of a user's own model: its loss on the last tenth of its batches, which are held out.

    Args:
        name: ``MODULE:FUNCTION`` of a function that returns ``(model, batches, loss)``.
        hyper: how long and how hard to train; ``batch_size`` is how many of the user's batches a step takes.

    Returns:
        The task; where the function returns a :class:`Task`, that one.

    Raises:
        ArgumentError: no such function, no loss, or fewer than two batches. When the task computes a loss:
            one that is no tensor of one value.
    """
    returned = user_function(name)()
    if isinstance(returned, Task):
        return returned
    loaded = _user_model(name, returned)
    loss, count = loaded.loss, max(1, len(loaded.batches) // 10)
    if loss is None:
        raise ArgumentError(
            f"{name} returns no loss, and a model is trained and scored by one; return (model, batches, loss)"
        )
    if len(loaded.batches) < 2:
        raise ArgumentError(f"{name} returns one batch; expected two at least, as the last tenth is held out")
    batches, held_out = loaded.batches[:-count], loaded.batches[-count:]

    def one_value(model: nn.Module, batch: UserBatch) -> Tensor:
        value: object = loss(model, batch)  # whatever a function without types returns
        if not isinstance(value, Tensor) or value.numel() != 1:
            what = f"shape {tuple(value.shape)}" if isinstance(value, Tensor) else type(value).__name__
            raise ArgumentError(
                f"the loss of {name} returned {what}; expected the mean loss of the batch, a tensor of one"
                " value"
            )
        return value.reshape(())

    def create(seed: int) -> nn.Module:
        return created(lambda: load_user_model(name).model, seed)

    def draw_batch(generator: torch.Generator, size: int) -> Batch:
        return (torch.randint(len(batches), (size,), generator=generator),)

    def drawn_loss(model: nn.Module, drawn: Batch) -> Tensor:
        return torch.stack([one_value(model, batches[i]) for i in drawn[0].tolist()]).mean()

    @torch.no_grad()
    def evaluate(model: nn.Module) -> float:
        return sum(float(one_value(model, batch)) for batch in held_out) / len(held_out)

    return Task(
        name=name,
        metric="loss",
        lower_is_better=True,
        create=create,
        draw_batch=draw_batch,
        loss=drawn_loss,
        evaluate=evaluate,
        hyper=hyper,
    )


def call_model(model: nn.Module, batch: UserBatch) -> object:
    """Return what a model makes of a batch: one argument, a tuple of them, or a mapping by name."""
    if isinstance(batch, Mapping):
        return model(**batch)
    return model(*batch) if isinstance(batch, tuple | list) else model(batch)


def _are_batches(batches: object) -> bool:
    return isinstance(batches, Sequence) and len(batches) > 0


def user_function(
    name: str, returns: str = "returns (model, batches)", example: str = "my_models"
) -> Callable[[], object]:
    """Import a module, from the current folder or installed, and return a function of it.

    Args:
        name: ``MODULE:FUNCTION``; the module's code runs.
        returns: what such a function does, for the message of an error.
        example: a module that could hold it, for the same.

    Raises:
        ArgumentError: there is no such module or function, or it takes arguments.
    """
    if not is_user_model(name):
        raise ArgumentError(
            f"{name!r:.200} is not MODULE:FUNCTION; write {example}:load for load() in {example}.py"
        )
    module, _, function = name.partition(":")
    here = str(Path.cwd())
    if here not in sys.path:  # the script `fewbits` looks for modules where it is installed only
        sys.path.insert(0, here)
        importlib.invalidate_caches()
    try:
        imported = importlib.import_module(module)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{module}.".startswith(f"{error.name}."):
            raise  # the module is there, and one that it imports is not
        raise ArgumentError(
            f"there is no module {module!r:.200} in {here} or installed; write {example}:load for load() in"
            f" {example}.py"
        ) from None
    load = getattr(imported, function, None)
    if not callable(load):
        raise ArgumentError(f"{module} has no function {function}; write one that {returns}")
    if needed := _needed(load):
        raise ArgumentError(
            f"{name} takes {', '.join(needed)}, and is called without arguments; write one that takes none"
            f" and {returns}"
        )
    return load  # type: ignore[no-any-return]  # what a module holds has no type


def _needed(function: Callable[..., object]) -> list[str]:
    """Return the arguments without which a function cannot be called."""
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):  # some functions of C say nothing of their arguments
        return []
    free = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    return [p.name for p in parameters if p.default is p.empty and p.kind not in free]
