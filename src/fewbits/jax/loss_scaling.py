"""The dynamic loss scale of mixed precision, as a pytree."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax
from jax.typing import ArrayLike, DTypeLike

from fewbits.errors import ArgumentError
from fewbits.jax.trees import Tree, is_floating, is_narrow, one_boolean
from fewbits.recipes import Recipe
from fewbits.recipes import recipe as read

LARGEST_FLOAT16 = 65504.0
INITIAL = 2.0**15
_BITS = {"float16": (5, 10), "bfloat16": (8, 7)}  # of exponent and mantissa


@partial(
    jax.tree_util.register_dataclass,
    data_fields=("loss_scale", "good_steps"),
    meta_fields=("factor", "period", "smallest"),
)
@dataclass(frozen=True)
class DynamicLossScaling:
    """A loss scale that grows after a period without overflow and shrinks after one overflow.

    It never grows above 65504, the largest float16: the gradient that enters a float16 loss is the scale
    itself. A scale that is a power of two is exact in every dtype, and stays one where the factor is.
    (Micikevicius et al., Mixed Precision Training, 2018, section 3.2; MPX: Mixed Precision Training for JAX,
    2025.) A tree: pass it through jit, save it with the parameters.

    Attributes:
        loss_scale: float32; what a loss is multiplied by.
        good_steps: int32; steps without overflow since the scale last changed.
        factor: by which the scale grows and shrinks; 1 for a static scale.
        period: steps without overflow after which it grows.
        smallest: scale.
    """

    loss_scale: Array = field(default_factory=lambda: jnp.asarray(INITIAL, jnp.float32))
    good_steps: Array = field(default_factory=lambda: jnp.asarray(0, jnp.int32))
    factor: float = 2.0
    period: int = 2000
    smallest: float = 1.0

    @staticmethod
    def of(recipe: str | Recipe) -> DynamicLossScaling | None:
        """Return the scaling of a recipe, None if it has none.

        A dynamic scale that a recipe begins above 65504 is divided by its factor until it is not.

        Args:
            recipe: a recipe, or its text.

        Raises:
            ArgumentError: no such recipe, a floor of its scale, or a scale that shrinks by another factor
                than it grows by.
        """
        chosen = read(recipe)
        if chosen.scaling is None:
            return None
        wanted = chosen.scaling
        if wanted.floors or wanted.growth_factor * wanted.backoff_factor != 1:
            raise ArgumentError(
                f"recipe {chosen.name!r} scales the loss {wanted}, growing by {wanted.growth_factor:g} and"
                f" shrinking by {wanted.backoff_factor:g}; fewbits.jax has no floors and one factor for both:"
                " take scaling=dynamic, or a number"
            )
        factor, start = wanted.growth_factor if wanted.dynamic else 1.0, wanted.init_scale
        while wanted.dynamic and start > LARGEST_FLOAT16:
            start /= factor
        return DynamicLossScaling(
            jnp.asarray(start, jnp.float32),
            factor=factor,
            period=wanted.growth_interval,
            smallest=min(1.0, start),
        )

    def scale(self, loss: ArrayLike) -> Array:
        """Return a loss times the scale, which is rounded to the dtype of the loss; float32."""
        loss = jnp.asarray(loss)
        return loss.astype(jnp.float32) * self._entering(loss.dtype)

    def unscale(self, gradients: Tree, dtype: DTypeLike = jnp.float32) -> Tree:
        """Return gradients of a scaled loss divided by this scale, float32.

        Args:
            gradients: any tree.
            dtype: of the loss that was scaled.
        """
        entered = self._entering(dtype)
        unscaled: Tree = jax.tree.map(
            lambda g: jnp.asarray(g.astype(jnp.float32)) / entered if is_floating(g) else g,
            gradients,
            is_leaf=is_narrow,
        )
        return unscaled

    def _entering(self, dtype: DTypeLike) -> Array:
        """Return the scale as a gradient of the dtype holds it: what enters a loss is the scale itself."""
        bits = _BITS.get(jnp.dtype(dtype).name)
        # XLA may drop a cast and the cast back.
        return self.loss_scale if bits is None else lax.reduce_precision(self.loss_scale, *bits)

    def adjusted(self, finite: Array) -> DynamicLossScaling:
        """Return the scaling of the next step.

        Args:
            finite: whether the gradients of this step are, as :func:`fewbits.jax.all_finite` returns it.

        Raises:
            ArgumentError: it is not one boolean.
        """
        good = one_boolean(finite)
        steps = self.good_steps + 1
        grown = self.loss_scale * np.float32(self.factor)
        grown = jnp.where(grown <= np.float32(LARGEST_FLOAT16), grown, self.loss_scale)
        shrunk = jnp.maximum(self.loss_scale / np.float32(self.factor), np.float32(self.smallest))
        due = steps >= self.period
        kept = jnp.where(due, grown, self.loss_scale)
        return replace(
            self,
            loss_scale=jnp.where(good, kept, shrunk),
            good_steps=jnp.where(good & ~due, steps, 0),
        )
