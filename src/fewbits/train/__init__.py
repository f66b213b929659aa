"""Train in narrow formats: the loop, its tasks, and whole runs that can be killed and resumed."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fewbits.train.runs import run
    from fewbits.train.schedules import schedule
    from fewbits.train.settings import Settings
    from fewbits.train.trainer import Trainer

_HOMES = {"Settings": "settings", "Trainer": "trainer", "run": "runs", "schedule": "schedules"}

__all__ = ["Settings", "Trainer", "run", "schedule"]


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        return getattr(import_module(f"fewbits.train.{_HOMES[name]}"), name)
    raise AttributeError(f"fewbits.train has no name {name!r}; it has {', '.join(__all__)}")
