"""What a training run is told, as data: everything that decides its bits."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from fewbits.errors import ArgumentError
from fewbits.train.tasks.task import Hyperparameters


@dataclass(frozen=True)
class Settings:
    """One run. Two runs with equal settings on one machine end with the same bits."""

    task: str  # "bytes", "digits", "faint", "mnist10k", the path of a text, or MODULE:FUNCTION
    recipe: str
    size: str = "small"  # of the model: "small" or "base"
    steps: int = 0  # 0: as many as the task says
    seed: int = 0
    learning_rate: float | None = None  # its peak; None: as the task says
    batch: int | None = None  # samples in one step; None: as many as the task says
    include: tuple[str, ...] = ("*",)  # patterns of the layers that follow the recipe
    exclude: tuple[str, ...] = ()  # patterns of those that stay as they are
    observe_every: int = 50  # steps from one look at the rounding to the next
    save_every: int = 50  # steps from one checkpoint to the next

    def __post_init__(self) -> None:
        """Refuse a rate or a batch that trains nothing."""
        if self.learning_rate is not None and not 0 < self.learning_rate < math.inf:
            raise ArgumentError(f"learning_rate={self.learning_rate!r}; expected a number above 0")
        if self.batch is not None and self.batch < 1:
            raise ArgumentError(f"batch={self.batch!r}; expected 1 or more")

    def apply(self, hyper: Hyperparameters) -> Hyperparameters:
        """Return the hyperparameters of a task with what differs in this run."""
        return replace(
            hyper,
            steps=self.steps or hyper.steps,
            learning_rate=self.learning_rate or hyper.learning_rate,
            batch=self.batch or hyper.batch,
        )
