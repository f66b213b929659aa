"""How a prepared layer computes: its recipe, its exemptions and its observer."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import torch

from fewbits.recipes import Recipe, RoleFormat
from fewbits.recipes.rounding import round_as

DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}


class Observer(Protocol):
    """Is called with every tensor that a prepared layer rounds; :func:`fewbits.nn.prepare` takes one."""

    def observe(
        self, precision: LayerPrecision, role: str, x: torch.Tensor, rounded: torch.Tensor, axis: int
    ) -> None:
        """Look at a tensor and its rounded values.

        Args:
            precision: of the layer; ``precision.layer`` is its name.
            role: an operand of the recipe, as ``forward_weight``; or, where float16 flows between products,
                ``result_gradient``, ``input_gradient`` or ``weight_gradient``, a float32 gradient and what
                float16 makes of it, or ``arriving_gradient``, of the layer that gives the logits, which is
                float16 already.
            x: before rounding.
            rounded: after it, of the same shape.
            axis: along which blocks lie.
        """


@dataclass(eq=False)
class LayerPrecision:
    """How one layer computes.

    Attributes:
        recipe: operands, vector format and kind of product.
        layer: the layer's name in its model.
        exempt: the operands are not rounded; only the vector format holds.
        last: the gradient that enters is that of the logits.
        packs_activations: they wait for the backward pass in the format that its product takes.
        observer: sees each operand; None for nobody.
    """

    recipe: Recipe
    layer: str = ""
    exempt: bool = False
    last: bool = False
    observer: Observer | None = None
    packs_activations: bool = True

    @property
    def dtype(self) -> torch.dtype:
        """The type that flows between products."""
        return DTYPES[self.recipe.vector]

    def format_of(self, role: str) -> RoleFormat | None:
        """Return what the operand ``role`` is rounded to in this layer; None if it is not."""
        if self.exempt or (self.last and role.endswith("gradient") and not self.recipe.logit_gradient):
            return None
        format: RoleFormat | None = getattr(self.recipe, role)
        return format

    def round(self, role: str, x: torch.Tensor, axis: int, seed: int | None = None) -> torch.Tensor:
        """Return ``x`` as the operand ``role`` of a product that sums along ``axis``; same shape and dtype.

        Stochastic rounding takes its seed from torch's own generator, unless ``seed`` gives one: what
        ``torch.manual_seed`` repeats, it repeats.
        """
        target = self.format_of(role)
        if target is None:
            return x
        # A dynamic loss scale backs off where a gradient overflows: it has to see that.
        scaled = role.endswith("gradient") and self.recipe.scaling is not None and self.recipe.scaling.dynamic
        rounded = round_as(x, target, axis, overflow=None if scaled else "saturate", seed=seed)
        self.report(role, x, rounded, axis)
        return rounded

    def report(self, role: str, x: torch.Tensor, rounded: torch.Tensor, axis: int) -> None:
        """Let the observer see an operand."""
        if self.observer is not None:
            self.observer.observe(self, role, x, rounded, axis)

    def to_flow(self, role: str, gradient: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
        """Return a float32 gradient in the dtype in which it flows on to the layer before."""
        flowing = gradient.to(dtype)
        if dtype == torch.float16:
            self.report(role, gradient, flowing, -1)
        return flowing
