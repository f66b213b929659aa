"""Train in narrow formats: the loop, its tasks, and whole runs that can be killed and resumed."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fewbits.train.baseline import fp32_model
    from fewbits.train.by_recipe import recipe_trainer
    from fewbits.train.decentralized import RoutedExperts, integrate_flow, router_loss, velocity_loss
    from fewbits.train.precision import PrecisionObserver
    from fewbits.train.reproducible import seeded
    from fewbits.train.runs import run
    from fewbits.train.samples import (
        CachedDataset,
        CacheStatistics,
        FilteredSampler,
        el2n_scores,
        loss_scores,
    )
    from fewbits.train.schedules import schedule
    from fewbits.train.settings import Settings
    from fewbits.train.step import Step
    from fewbits.train.tasks import Hyperparameters, Task
    from fewbits.train.trainer import Trainer

_HOMES = {
    "CacheStatistics": "samples",
    "CachedDataset": "samples",
    "FilteredSampler": "samples",
    "Hyperparameters": "tasks",
    "RoutedExperts": "decentralized",
    "PrecisionObserver": "precision",
    "Settings": "settings",
    "Step": "step",
    "Task": "tasks",
    "Trainer": "trainer",
    "el2n_scores": "samples",
    "fp32_model": "baseline",
    "integrate_flow": "decentralized",
    "loss_scores": "samples",
    "recipe_trainer": "by_recipe",
    "router_loss": "decentralized",
    "run": "runs",
    "schedule": "schedules",
    "seeded": "reproducible",
    "velocity_loss": "decentralized",
}

__all__ = [
    "CacheStatistics",
    "CachedDataset",
    "FilteredSampler",
    "Hyperparameters",
    "PrecisionObserver",
    "RoutedExperts",
    "Settings",
    "Step",
    "Task",
    "Trainer",
    "el2n_scores",
    "fp32_model",
    "integrate_flow",
    "loss_scores",
    "recipe_trainer",
    "router_loss",
    "run",
    "schedule",
    "seeded",
    "velocity_loss",
]


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        return getattr(import_module(f"fewbits.train.{_HOMES[name]}"), name)
    raise AttributeError(f"fewbits.train has no name {name!r}; it has {', '.join(__all__)}")
