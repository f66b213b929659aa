"""Demotion by size, promotion on overflow: Lee, Sharma, Aiken, Mixed-Precision Assignments, 2023, sec. 4."""

from __future__ import annotations

import math
from typing import cast

import torch
from torch import nn

from fewbits.errors import ArgumentError
from fewbits.nn.layer_precision import LayerPrecision, Observer
from fewbits.optim.sharded import processes
from fewbits.recipes import Recipe
from fewbits.train.schedules.schedule import Schedule
from fewbits.typing import StateDict

HIGH = "fp16_e6m9"
LOW_SHARE = 0.9  # of all weights that are to be low; the paper's target is a ratio of memory
OVERFLOW = 0.01  # of an operand's values beyond the largest: the layer is promoted, for good


class Assigned(Schedule):
    """Gives the largest layers the low formats until they hold most weights; overflow promotes a layer.

    Raises:
        ArgumentError: several processes. A layer is promoted at once, in the middle of a forward pass, and to
            agree they would have to wait for each other at every operand.
    """

    def __init__(self, model: nn.Module, recipe: Recipe, steps: int) -> None:
        if processes() > 1:
            raise ArgumentError(
                f"recipe {recipe.name!r} on {processes()} processes: each would choose formats by what its"
                " own samples do; take another recipe, or one process"
            )
        super().__init__(model, recipe, steps)
        # A role that the recipe leaves wide is wider than that.
        rounded = [role for role, low in recipe.operands.items() if low is not None]
        self.high = recipe.extended(**dict.fromkeys(rounded, HIGH))
        modules = dict(model.named_modules())
        sizes = {name: sum(p.numel() for p in modules[name].parameters()) for name in self.precision}
        self.low: set[str] = set()
        total = sum(sizes.values())
        for name in sorted(sizes, key=lambda n: -sizes[n]):
            if sum(sizes[n] for n in self.low) < LOW_SHARE * total:
                self.low.add(name)
        self.promoted: list[str] = []
        for name, precision in self.precision.items():
            there = precision.observer
            if isinstance(there, _Overflow):  # of a schedule before this one, which would go on promoting
                there = there.behind
            precision.observer = _Overflow(self, name, there)
        self.apply()

    def promote(self, name: str) -> None:
        """Keep a layer in the high formats from now on."""
        self.low.discard(name)
        self.promoted.append(name)
        self.apply()

    def apply(self) -> None:
        """Give each layer the recipe of the current step."""
        for name, precision in self.precision.items():
            precision.recipe = self.recipe if name in self.low else self.high

    def state_dict(self) -> StateDict:
        """Return what :meth:`load_state_dict` takes."""
        return super().state_dict() | {"low": sorted(self.low), "promoted": list(self.promoted)}

    def _check(self, state_dict: StateDict) -> None:
        super()._check(state_dict)
        names = [*cast(list[str], state_dict["low"]), *cast(list[str], state_dict["promoted"])]
        unknown = [name for name in names if name not in self.precision]
        if unknown:
            raise ArgumentError(
                f"the state has a layer {unknown[0]!r}, which {type(self.model).__name__} lacks; load it into"
                " the schedule of a model of the same layers"
            )

    def _restore(self, state_dict: StateDict) -> None:
        super()._restore(state_dict)
        self.low = set(cast(list[str], state_dict["low"]))
        self.promoted = list(cast(list[str], state_dict["promoted"]))


class _Overflow:
    """Counts the values that overflow in a low layer, in every step."""

    def __init__(self, schedule: Assigned, name: str, behind: Observer | None) -> None:
        self.schedule, self.name, self.behind = schedule, name, behind

    def observe(
        self, precision: LayerPrecision, role: str, x: torch.Tensor, rounded: torch.Tensor, axis: int
    ) -> None:
        """Promote the layer where too much of an operand lies beyond the largest value."""
        # A gradient that overflows is the loss scale's business, which backs off.
        if self.name in self.schedule.low and not role.endswith("gradient"):
            # Scales of blocks grow with their values.
            top = getattr(getattr(precision.recipe, role).format, "max", math.inf)
            if int((x.abs() > top).sum()) >= OVERFLOW * x.numel() > 0:
                self.schedule.promote(self.name)
        if self.behind is not None:
            self.behind.observe(precision, role, x, rounded, axis)
