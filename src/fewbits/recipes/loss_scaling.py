"""How the loss is scaled, so that small gradients stay above what their format flushes."""

from __future__ import annotations

import math
from dataclasses import dataclass

from fewbits.errors import ArgumentError


@dataclass(frozen=True)
class LossScaling:
    """A static or a dynamic loss scale (Micikevicius et al., Mixed Precision Training, 2018, section 3.2).

    A dynamic scale is multiplied by ``growth_factor`` after ``growth_interval`` steps without overflow, and
    by ``backoff_factor`` after a step with one; names and defaults are those of
    :class:`torch.amp.GradScaler`. ``floors`` are pairs (step, least scale from that step on), which keep
    single overflows from lowering the scale too far: enhanced loss scaling (Mellempudi et al., Mixed
    Precision Training With 8-bit Floating Point, 2019, section 3.1).
    """

    init_scale: float = 65536.0
    dynamic: bool = True
    growth_factor: float = 2.0
    backoff_factor: float = 0.5
    growth_interval: int = 2000
    floors: tuple[tuple[int, float], ...] = ()

    def __post_init__(self) -> None:
        """Raise if gradients could not be divided by the scale."""
        if not 0 < self.init_scale < math.inf:
            raise ArgumentError(f"a loss scale of {self.init_scale:g}; expected a finite number above 0")

    def __str__(self) -> str:
        """Say it in a few words."""
        words = f"{'dynamic, from' if self.dynamic else 'static,'} {self.init_scale:g}"
        if self.floors:
            words += ", at least " + ", ".join(f"{least:g} from step {step}" for step, least in self.floors)
        return words
