"""The training loop of a recipe: model, optimizer, loss scale and schedule that follow it."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from torch import nn

from fewbits.nn import RoundingObserver, prepare
from fewbits.optim import AdamW, scaler
from fewbits.recipes import Recipe
from fewbits.recipes import recipe as read
from fewbits.sparsity import MaskedOptimizer
from fewbits.train.schedules import schedule
from fewbits.train.tasks import Task
from fewbits.train.trainer import Trainer


def recipe_trainer(
    task: Task,
    recipe: str | Recipe,
    *,
    seed: int = 0,
    steps: int = 0,
    include: str | Iterable[str] = "*",
    exclude: str | Iterable[str] = (),
    observe_every: int = 50,
    begin: Callable[[nn.Module], object] | None = None,
) -> Trainer:
    """Return a trainer that follows a recipe: AdamW, warm-up over a tenth of the steps, cosine decay.

    Args:
        task: model, batches, loss and hyperparameters.
        recipe: a recipe or its text.
        seed: of the initial weights.
        steps: how many the learning rate is planned for; 0: as many as the task says.
        include: patterns of the layers that follow the recipe, as :func:`fewbits.nn.prepare` takes them.
        exclude: patterns of the layers that stay as they are.
        observe_every: steps from one look at the rounding to the next.
        begin: called with the model before it is prepared: to load weights, or to make it sparse.

    Raises:
        ArgumentError: no such recipe, or a model that it cannot change.

    >>> from fewbits.train.tasks import digits_task
    >>> trainer = recipe_trainer(digits_task(), "mxfp6", steps=2)
    >>> [step.step for step in trainer]
    [1, 2]
    """
    chosen, observer = read(recipe), RoundingObserver(observe_every)
    created = task.create(seed)
    if begin is not None:
        begin(created)
    model = prepare(created, chosen, include=include, exclude=exclude, observer=observer)
    hyper = task.hyper
    optimizer = AdamW(
        model.parameters(),
        lr=hyper.lr,
        betas=hyper.betas,
        weight_decay=hyper.weight_decay,
        recipe=chosen,
    )
    return Trainer(
        task,
        model,
        MaskedOptimizer(optimizer, model) if hasattr(model, "fewbits_sparsity") else optimizer,
        steps=steps,
        scaler=scaler(chosen),
        schedule=schedule(model, chosen, steps or hyper.steps),
        observer=observer,
    )
