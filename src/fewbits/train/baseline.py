"""The model of a task, trained in FP32 by torch's own optimizer, and kept on disk."""

from __future__ import annotations

import torch
from torch import nn

from fewbits.train.learning_rates import one_cycle
from fewbits.train.reproducible import one_thread
from fewbits.train.tasks import Task, cache
from fewbits.train.trainer import Trainer
from fewbits.typing import Progress


def fp32_model(task: Task, seed: int = 0, *, progress: Progress | None = None) -> nn.Module:
    """Return the model of a task after training in FP32, from the cache where that has it.

    Args:
        task: its ``cache_path`` says where the model is kept, if it is.
        seed: of the initial weights.
        progress: called after each step of training; never for a model from the cache.

    Returns:
        The model in eval mode; its parameters take no gradient.
    """
    model = task.create(seed)
    path = None if task.cache_path is None else task.cache_path(seed)
    if path is None or not cache.load(model, path):
        _train(task, model, progress)
        if path is not None:
            cache.save(model, path)
    return model.eval().requires_grad_(False)


def _train(task: Task, model: nn.Module, progress: Progress | None) -> None:
    hyper = task.hyper
    optimizer = torch.optim.AdamW(
        model.parameters(),
        lr=hyper.lr,
        betas=hyper.betas,
        weight_decay=hyper.weight_decay,
        fused=True,
    )
    with one_thread():
        for step in Trainer(task, model, optimizer, lr_schedule=one_cycle):
            if progress is not None:
                progress(f"{task.name}: training in FP32", step.step, hyper.steps)
