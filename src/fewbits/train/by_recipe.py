"""The training loop of a recipe: model, optimizer, loss scale and schedule that follow it."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import torch
from torch import distributed, nn

from fewbits.errors import ArgumentError
from fewbits.nn import RoundingObserver, prepare
from fewbits.optim import scaler
from fewbits.recipes import Recipe
from fewbits.recipes import codec as read_codec
from fewbits.recipes import recipe as read
from fewbits.sparsity import MaskedOptimizer
from fewbits.train.learning_rates import OF_RECIPES
from fewbits.train.optimizers import recipe_optimizer
from fewbits.train.schedules import schedule
from fewbits.train.tasks import Task
from fewbits.train.together import Together
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
    codec: str = "",
    local_steps: int = 0,
    shard_states: bool = False,
) -> Trainer:
    """Return a trainer that follows a recipe, after a warm-up of the learning rate over a tenth of the steps.

    Args:
        task: model, batches, loss and hyperparameters.
        recipe: a recipe or its text.
        seed: of the initial weights.
        steps: how many the learning rate is planned for; 0: as many as the task says.
        include: patterns of the layers that follow the recipe, as :func:`fewbits.nn.prepare` takes them.
        exclude: patterns of the layers that stay as they are.
        observe_every: steps from one look at the rounding to the next.
        begin: called with the model before it is prepared: to load weights, or to make it sparse.
        codec: in which gradients, or updates, travel between processes; "" where there is one.
        local_steps: from one exchange of updates to the next; 0: gradients are averaged in each step.
        shard_states: each process holds the states of its own tensors, as
            :class:`fewbits.distributed.ZeroOptimizer` deals them out.

    Raises:
        ArgumentError: no such recipe, a model that it cannot change, or a codec, local steps or sharded
            states that do not fit the recipe.

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
    if local_steps and (chosen.schedule or chosen.parameter is not None):
        why = (
            f"schedule {chosen.schedule!r} changes formats by what each process sees"
            if chosen.schedule
            else f"parameters are held in {chosen.parameter}, and shared ones are float32"
        )
        raise ArgumentError(
            f"local steps with recipe {chosen.name!r}, whose {why}; take another recipe, or leave them out"
        )
    if local_steps and not codec:
        raise ArgumentError(f"local_steps={local_steps} without a codec; name what travels, as fp32")
    scaling = chosen.scaling
    if codec and read_codec(codec).feedback and scaling is not None and scaling.dynamic:
        raise ArgumentError(
            f"codec {codec} with recipe {chosen.name!r}, whose loss scale changes: feedback would be in the"
            " units of the old one; take the codec without feedback, or the recipe with scaling=1024"
        )
    if shard_states:
        _check_sharded(model, chosen, codec, local_steps)
    together = Together(model, codec, local_steps, seed) if codec else None
    # Behind averaged gradients all hold the same ones, unless each keeps those of its own tensors.
    alike = distributed.group.WORLD if codec and not local_steps and not shard_states else None
    optimizer = recipe_optimizer(model.parameters(), chosen, task.hyper, alike)
    held: torch.optim.Optimizer = optimizer
    if hasattr(model, "fewbits_sparsity"):
        held = MaskedOptimizer(optimizer, model)
    elif together is not None and shard_states:
        held = together.sharded(optimizer)
    return Trainer(
        task,
        model,
        held,
        steps=steps,
        lr_schedule=OF_RECIPES[chosen.lr_schedule],
        scaler=scaler(chosen),
        schedule=schedule(model, chosen, steps or task.hyper.steps),
        observer=observer,
        together=together,
    )


def _check_sharded(model: nn.Module, recipe: Recipe, codec: str, local_steps: int) -> None:
    """Raise where a process needs more than its own gradients and states."""
    why = {
        "there is one process, or no codec": not codec,
        "processes that take local steps need all of them": local_steps,
        "masks are applied to all of them": hasattr(model, "fewbits_sparsity"),
        f"schedule {recipe.schedule!r} looks at all gradients": recipe.schedule == "muppet",
        "its loss scale depends on all gradients": recipe.scaling is not None,
    }
    reason = next((text for text, holds in why.items() if holds), None)
    if reason is not None:
        raise ArgumentError(
            f"sharded states with recipe {recipe.name!r}, and {reason}; leave shard_states out"
        )
