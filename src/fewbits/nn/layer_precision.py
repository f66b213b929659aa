"""What a prepared layer is told: its recipe, what it is excused from, and who watches it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import torch

from fewbits.recipes import Cast, Recipe
from fewbits.tensor.rounding import round_to

DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}


class Watcher(Protocol):
    """Sees every tensor that a layer rounds.

    A role is an operand of the recipe, or, where float16 flows between products, ``result_gradient``,
    ``input_gradient`` or ``weight_gradient``: a float32 gradient and what float16 makes of it. An
    ``arriving_gradient``, of the layer that gives the logits, is float16 already.
    """

    def see(
        self, precision: LayerPrecision, role: str, x: torch.Tensor, rounded: torch.Tensor, axis: int
    ) -> None:
        """Look at ``x`` and what it became."""


@dataclass(eq=False)
class LayerPrecision:
    """How one layer computes.

    Attributes:
        recipe: operands, vector format and kind of product.
        layer: the layer's name in its model.
        kept: the layer keeps its operands as they are; only the vector format holds.
        last: the gradient that enters is that of the logits.
        packs: activations are kept for the backward pass in the format that its product takes.
        watcher: sees each operand; None for nobody.
    """

    recipe: Recipe
    layer: str = ""
    kept: bool = False
    last: bool = False
    watcher: Watcher | None = None
    packs: bool = True

    @property
    def dtype(self) -> torch.dtype:
        """The type that flows between products."""
        return DTYPES[self.recipe.vector]

    def how(self, role: str) -> Cast | None:
        """Return what the operand ``role`` is rounded to in this layer; None if it is not."""
        how: Cast | None = getattr(self.recipe, role)
        if self.kept or (self.last and role.endswith("gradient") and not self.recipe.logit_gradient):
            return None
        return how

    def cast(self, role: str, x: torch.Tensor, axis: int, seed: int | None = None) -> torch.Tensor:
        """Return ``x`` as the operand ``role`` of a product that sums along ``axis``.

        ``seed`` is that of stochastic rounding; a fresh one by default.
        """
        how = self.how(role)
        if how is None:
            return x
        # A dynamic loss scale backs off where a gradient overflows: it has to see that.
        scaled = role.endswith("gradient") and self.recipe.scaling is not None and self.recipe.scaling.dynamic
        rounded = cast(x, how, axis, None if scaled else "saturate", seed)
        self.show(role, x, rounded, axis)
        return rounded

    def show(self, role: str, x: torch.Tensor, rounded: torch.Tensor, axis: int) -> None:
        """Let the watcher see an operand."""
        if self.watcher is not None:
            self.watcher.see(self, role, x, rounded, axis)

    def narrowed(self, role: str, wide: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
        """Return a float32 gradient in the dtype in which it flows on."""
        found = wide.to(dtype)
        if dtype == torch.float16:
            self.show(role, wide, found, -1)
        return found


def cast(
    x: torch.Tensor, how: Cast, axis: int, overflow: str | None = "saturate", seed: int | None = None
) -> torch.Tensor:
    """Return ``x`` rounded as ``how`` says, with blocks along ``axis``; same shape and dtype.

    ``overflow`` says what lies beyond the largest value becomes; None is the format's own way.

    Stochastic rounding takes its seed from torch's own generator: what ``torch.manual_seed`` repeats, it
    repeats.
    """
    return round_to(
        x,
        how.format,
        axis=axis,
        rounding=how.rounding,
        scale_rule=how.scale_rule,
        shift=how.shift,
        overflow=overflow,
        seed=seed,
    )
