"""The optimizer that a recipe names, with the hyperparameters of a task."""

from __future__ import annotations

from collections.abc import Iterable

import torch

from fewbits.optim import LARS, SGD, AdamW, Optimizer
from fewbits.recipes import Recipe
from fewbits.train.tasks import Hyperparameters
from fewbits.typing import ProcessGroup

# The rate of a layer is then the length of its step over that of its weights: of the order of AdamW's rates,
# where the papers' 0.001 asks for rates of tens, which biases could not take.
TRUST = 1.0


def recipe_optimizer(
    parameters: Iterable[torch.nn.Parameter],
    recipe: Recipe,
    hyper: Hyperparameters,
    group: ProcessGroup = None,
) -> Optimizer:
    """Return the optimizer of a recipe.

    Args:
        parameters: of the model, after it was prepared.
        recipe: says which one.
        hyper: learning rate and so on, of which each optimizer takes its own.
        group: processes that hold the same parameters, and share the norms of LARS; None: there are none.
    """
    if recipe.optimizer == "adamw":
        return AdamW(
            parameters, lr=hyper.lr, betas=hyper.betas, weight_decay=hyper.weight_decay, recipe=recipe
        )
    if recipe.optimizer == "sgd":
        return SGD(
            parameters, hyper.lr, momentum=hyper.momentum, weight_decay=hyper.gradient_decay, recipe=recipe
        )
    return LARS(
        parameters,
        hyper.lr,
        momentum=hyper.momentum,
        weight_decay=hyper.gradient_decay,
        trust_coefficient=TRUST,
        recipe=recipe,
        group=group,
    )
