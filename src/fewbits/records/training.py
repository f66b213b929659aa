"""Runs of training by a recipe."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class TrainRun:
    """One model trained by one recipe from one seed."""

    task: str
    metric: str  # "nll" (nats per byte) or "accuracy" (percent)
    lower_is_better: bool
    recipe: str
    seed: int
    steps: int
    value: float  # the metric on held-out data
    final_loss: float  # mean of the last steps, nats
    seconds_per_step: float
    bytes_per_value: float  # of parameters, gradients and optimizer states as they lie in memory
    warnings: tuple[str, ...]
    resolution: float = 0.0  # smallest step of the metric, that of one test image; 0 for a continuous one
    losses: tuple[float, ...] = ()  # mean of each `loss_every` steps, nats; the last one may be of fewer
    loss_every: int = 1
    processes: int = 1
    codec: str = ""  # in which gradients, or updates, travelled between them
    bytes_sent: float = 0.0  # by one process, in a step
    bytes_wide: float = 0.0  # that the same values take in their own dtype
