"""The dynamic loss scale of mixed precision, as a pytree."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from fewbits.jax.trees import Tree, is_floating

LARGEST_FLOAT16 = 65504.0
INITIAL = 2.0**15


@partial(
    jax.tree_util.register_dataclass,
    data_fields=("loss_scale", "good_steps"),
    meta_fields=("factor", "period", "smallest"),
)
@dataclass(frozen=True)
class DynamicLossScaling:
    """A loss scale that grows after a period without overflow and shrinks after one overflow.

    It is never above 65504, the largest float16: the gradient that enters a float16 loss is the scale itself.
    (Micikevicius et al., Mixed Precision Training, 2018, section 3.2; MPX: Mixed Precision Training for JAX,
    2025.) A tree: pass it through jit, save it with the parameters.

    Attributes:
        loss_scale: float32; what a loss is multiplied by.
        good_steps: int32; steps without overflow since the scale last changed.
        factor: by which the scale grows and shrinks.
        period: steps without overflow after which it grows.
        smallest: scale.
    """

    loss_scale: Array = field(default_factory=lambda: jnp.asarray(INITIAL, jnp.float32))
    good_steps: Array = field(default_factory=lambda: jnp.asarray(0, jnp.int32))
    factor: float = 2.0
    period: int = 2000
    smallest: float = 1.0

    def scale(self, loss: Array) -> Array:
        """Return a loss times the scale, float32."""
        return loss.astype(jnp.float32) * self.loss_scale

    def unscale(self, gradients: Tree) -> Tree:
        """Return gradients of a scaled loss divided by this scale, float32."""
        unscaled: Tree = jax.tree.map(
            lambda g: jnp.asarray(g).astype(jnp.float32) / self.loss_scale if is_floating(g) else g, gradients
        )
        return unscaled

    def adjusted(self, finite: Array) -> DynamicLossScaling:
        """Return the scaling of the next step.

        Args:
            finite: whether the gradients of this step are, as :func:`fewbits.jax.all_finite` returns it.
        """
        steps = self.good_steps + 1
        grown = jnp.minimum(self.loss_scale * np.float32(self.factor), np.float32(LARGEST_FLOAT16))
        shrunk = jnp.maximum(self.loss_scale / np.float32(self.factor), np.float32(self.smallest))
        due = steps >= self.period
        kept = jnp.where(due, grown, self.loss_scale)
        return replace(
            self,
            loss_scale=jnp.where(finite, kept, shrunk),
            good_steps=jnp.where(finite & ~due, steps, 0),
        )
