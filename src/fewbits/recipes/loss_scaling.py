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
        """Raise if gradients could not be divided by the scale, or the scale could not move as it should."""
        if not 0 < self.init_scale < math.inf:
            raise ArgumentError(f"a loss scale of {self.init_scale:g}; expected a finite number above 0")
        if type(self.dynamic) is not bool:
            raise ArgumentError(f"dynamic={self.dynamic!r} of a loss scale; expected True or False")
        if not 1 < self.growth_factor < math.inf:
            raise ArgumentError(f"growth_factor={self.growth_factor!r}; expected a finite number above 1")
        if not 0 < self.backoff_factor < 1:
            raise ArgumentError(f"backoff_factor={self.backoff_factor!r}; expected above 0, and below 1")
        if type(self.growth_interval) is not int or self.growth_interval < 1:
            raise ArgumentError(f"growth_interval={self.growth_interval!r}; expected 1 step or more")
        for step, least in self.floors:
            if type(step) is not int or step < 0 or not 0 < least < math.inf:
                raise ArgumentError(
                    f"floors with {(step, least)!r}; expected a step, 0 or more, and a finite scale above 0"
                )

    def __str__(self) -> str:
        """Say it in a few words."""
        words = f"{'dynamic, from' if self.dynamic else 'static,'} {self.init_scale:g}"
        if self.floors:
            words += ", at least " + ", ".join(f"{least:g} from step {step}" for step, least in self.floors)
        return words
