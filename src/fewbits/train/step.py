"""What happened in one step of training."""

from __future__ import annotations

import math
from dataclasses import dataclass


@dataclass(frozen=True)
class Step:
    """One step of training, as the log has it.

    Attributes:
        step: its number, counted from 1.
        loss: of the batch, not scaled.
        lr: of the update.
        gradient_norm: before clipping, not scaled; None where it is infinite or not a number.
        loss_scale: that the loss was multiplied by.
        skipped: whether the loss scaler left the update out.
    """

    step: int
    loss: float
    lr: float
    gradient_norm: float | None
    loss_scale: float
    skipped: bool

    @property
    def is_finite(self) -> bool:
        """Whether loss and gradient are finite; without a loss scaler, other values reach the weights."""
        return math.isfinite(self.loss) and self.gradient_norm is not None
