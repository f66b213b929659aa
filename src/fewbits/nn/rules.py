"""What a prepared layer is told: its recipe, what it is excused from, and who watches it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import torch

from fewbits.recipes import Cast, Recipe
from fewbits.tensor import casting

DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}


class Watcher(Protocol):
    """Sees every tensor that a layer rounds."""

    def see(self, rules: Rules, role: str, x: torch.Tensor, rounded: torch.Tensor, axis: int) -> None:
        """Look at ``x`` and what it became."""


@dataclass(eq=False)
class Rules:
    """How one layer computes.

    Attributes:
        recipe: operands, vector format and kind of product.
        layer: the layer's name in its model.
        kept: the layer keeps its operands as they are; only the vector format holds.
        last: the gradient that enters is that of the logits.
        watcher: sees each operand; None for nobody.
    """

    recipe: Recipe
    layer: str = ""
    kept: bool = False
    last: bool = False
    watcher: Watcher | None = None

    @property
    def dtype(self) -> torch.dtype:
        """The type that flows between products."""
        return DTYPES[self.recipe.vector]

    def cast(self, role: str, x: torch.Tensor, axis: int) -> torch.Tensor:
        """Return ``x`` as the operand ``role`` of a product that sums along ``axis``."""
        how: Cast | None = getattr(self.recipe, role)
        if how is None or self.kept:
            return x
        if self.last and role.endswith("gradient") and not self.recipe.logit_gradient:
            return x
        # A dynamic loss scale backs off where a gradient overflows: it has to see that.
        scaled = role.endswith("gradient") and self.recipe.scaling is not None and self.recipe.scaling.dynamic
        rounded = cast(x, how, axis, None if scaled else "saturate")
        if self.watcher is not None:
            self.watcher.see(self, role, x, rounded, axis)
        return rounded


def cast(x: torch.Tensor, how: Cast, axis: int, overflow: str | None = "saturate") -> torch.Tensor:
    """Return ``x`` rounded as ``how`` says, with blocks along ``axis``; same shape and dtype.

    ``overflow`` says what lies beyond the largest value becomes; None is the format's own way.

    Stochastic rounding takes its seed from torch's own generator: what ``torch.manual_seed`` repeats, it
    repeats.
    """
    return casting.cast(
        x,
        how.format,
        axis=axis,
        rounding=how.rounding,
        scale_rule=how.scale_rule,
        shift=how.shift,
        overflow=overflow,
    )
