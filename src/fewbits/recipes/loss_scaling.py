"""How the loss is scaled, so that small gradients stay above what their format flushes."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from numbers import Real

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
        given: object = self.init_scale  # whatever a caller without types passes
        if not _is_above(0, given):
            said = f"{given:g}" if isinstance(given, (int, float)) else repr(given)
            raise ArgumentError(f"a loss scale of {said}; expected a finite number above 0")
        if type(self.dynamic) is not bool:
            raise ArgumentError(f"dynamic={self.dynamic!r} of a loss scale; expected True or False")
        if not _is_above(1, self.growth_factor):
            raise ArgumentError(f"growth_factor={self.growth_factor!r}; expected a finite number above 1")
        if not (_is_above(0, self.backoff_factor) and self.backoff_factor < 1):
            raise ArgumentError(f"backoff_factor={self.backoff_factor!r}; expected above 0, and below 1")
        if type(self.growth_interval) is not int or self.growth_interval < 1:
            raise ArgumentError(f"growth_interval={self.growth_interval!r}; expected 1 step or more")
        floors: object = self.floors
        for pair in floors if isinstance(floors, Sequence) else (floors,):
            if not _is_floor(pair):
                raise ArgumentError(
                    f"floors with {pair!r}; expected pairs: a step, 0 or more, and a finite scale above 0"
                )
        # Recipes are keys of dicts, and a list is none.
        object.__setattr__(self, "floors", tuple((step, least) for step, least in self.floors))

    def __str__(self) -> str:
        """Say it in a few words."""
        words = f"{'dynamic, from' if self.dynamic else 'static,'} {self.init_scale:g}"
        if self.floors:
            words += ", at least " + ", ".join(f"{least:g} from step {step}" for step, least in self.floors)
        return words


def _is_above(least: float, value: object) -> bool:
    """Whether a value, whatever a caller without types passes, is a finite number above ``least``."""
    return isinstance(value, Real) and least < float(value) < math.inf


def _is_floor(pair: object) -> bool:
    if not (isinstance(pair, Sequence) and len(pair) == 2):
        return False
    return type(pair[0]) is int and pair[0] >= 0 and _is_above(0, pair[1])
