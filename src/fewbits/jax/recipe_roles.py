"""What a recipe asks of a role, for arrays of JAX: rounding to its format, and what is refused by name."""

from __future__ import annotations

from collections.abc import Iterable

import jax
import jax.numpy as jnp
from jax import Array

from fewbits.errors import ArgumentError
from fewbits.jax.conversions import fake_quantize, shown_key, takes_key
from fewbits.kernels.bits.options import options
from fewbits.kernels.bits.scale_rules import MEAN_RULES
from fewbits.recipes import Recipe, RoleFormat

VECTORS = {"fp32": jnp.float32, "bf16": jnp.bfloat16, "fp16": jnp.float16}


def check_recipe(recipe: Recipe) -> None:
    """Raise ArgumentError for a recipe that does something that neither layers nor optimizers do here."""
    for wrong, what in (
        (recipe.autocast, "autocast, which is PyTorch's"),
        (recipe.product != "exact", f"product={recipe.product}"),
        (recipe.schedule, f"schedule={recipe.schedule}"),
        (
            any(f is not None and f.shift is not None for f in recipe.operands.values()),
            "a shift of its operands",
        ),
        (
            any(f is not None and f.scale_rule in MEAN_RULES for f in recipe.operands.values()),
            f"scales chosen from a mean ({', '.join(MEAN_RULES)})",
        ),
    ):
        if wrong:
            raise ArgumentError(f"recipe {recipe.name!r} has {what}, which fewbits.jax does not do")


def check_key(recipe: Recipe, roles: Iterable[RoleFormat | None], key: Array | None, what: str) -> None:
    """Raise ArgumentError unless there is a key where one of the roles is drawn, and none elsewhere."""
    if not takes_key(key, any(role is not None and role.rounding == "stochastic" for role in roles)):
        raise ArgumentError(
            f"key={shown_key(key)} with recipe {recipe.name!r}; a key of jax.random is for"
            f" recipes that round {what} stochastically"
        )


def rounded(
    x: Array,
    target: RoleFormat,
    axis: int = -1,
    *,
    overflow: str | None = "saturate",
    key: Array | None = None,
    refuse: bool = True,
) -> Array:
    """Return ``x`` rounded as a role is; same shape and dtype.

    A format without NaN refuses NaN and infinity where values are known. Under a transformation, where they
    are not, those stay as they are, for the loss and a loss scale to see.

    Args:
        x: of any shape.
        target: format, rounding and scale rule.
        axis: along which blocks lie.
        overflow: what lies beyond the largest value becomes; None is the format's own way.
        key: is used if the role is drawn.
        refuse: NaN and infinity; where it is false, they stay as they are.
    """
    refuses = options(target.format, overflow=overflow).nonfinite == "raise"
    stay = refuses and (not refuse or isinstance(x, jax.core.Tracer))
    found = fake_quantize(
        x,
        target.format,
        axis=axis,
        rounding=target.rounding,
        scale_rule=target.scale_rule,
        overflow=overflow,
        nonfinite="saturate" if stay else None,
        key=key if target.rounding == "stochastic" else None,
    )
    return jnp.where(jnp.isfinite(x), found, x) if stay else found
