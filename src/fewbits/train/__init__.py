"""Train in narrow formats: the loop, its tasks, and whole runs that can be killed and resumed."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fewbits.train.baseline import fp32_model
    from fewbits.train.by_recipe import recipe_trainer
    from fewbits.train.precision import PrecisionObserver
    from fewbits.train.reproducible import seeded
    from fewbits.train.runs import run
    from fewbits.train.samples import CachedDataset, CacheStatistics
    from fewbits.train.schedules import schedule
    from fewbits.train.settings import Settings
    from fewbits.train.step import Step
    from fewbits.train.tasks import Hyperparameters, Task
    from fewbits.train.trainer import Trainer

_HOMES = {
    "CacheStatistics": "samples",
    "CachedDataset": "samples",
    "Hyperparameters": "tasks",
    "PrecisionObserver": "precision",
    "Settings": "settings",
    "Step": "step",
    "Task": "tasks",
    "Trainer": "trainer",
    "fp32_model": "baseline",
    "recipe_trainer": "by_recipe",
    "run": "runs",
    "schedule": "schedules",
    "seeded": "reproducible",
}

__all__ = [
    "CacheStatistics",
    "CachedDataset",
    "Hyperparameters",
    "PrecisionObserver",
    "Settings",
    "Step",
    "Task",
    "Trainer",
    "fp32_model",
    "recipe_trainer",
    "run",
    "schedule",
    "seeded",
]


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        return getattr(import_module(f"fewbits.train.{_HOMES[name]}"), name)
    raise AttributeError(f"fewbits.train has no name {name!r}; it has {', '.join(__all__)}")
