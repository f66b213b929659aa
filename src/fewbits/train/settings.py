"""What a training run is told, as data: everything that decides its bits."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Settings:
    """One run. Two runs with equal settings on one machine end with the same bits."""

    task: str  # "bytes", "digits", "faint", "mnist10k" or the path of a text
    recipe: str
    model: str = "small"
    steps: int = 0  # 0: as many as the task says
    seed: int = 0
    observe_every: int = 50  # steps from one look at the rounding to the next
    save_every: int = 50  # steps from one checkpoint to the next
