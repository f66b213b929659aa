"""Gradients in mixed precision: arguments cast, the loss scaled, the gradient unscaled."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol, cast

import jax
import jax.numpy as jnp
from jax import Array
from jax.typing import DTypeLike

from fewbits.errors import ArgumentError, DTypeError
from fewbits.jax.loss_scaling import DynamicLossScaling
from fewbits.jax.trees import Tree, all_finite, cast_tree, combine, partition

Scaling = DynamicLossScaling | None
Aux = object


class ValueAndGradients(Protocol):
    """What :func:`filter_value_and_grad` returns."""

    def __call__(
        self, parameters: Tree, /, *args: object, **kwargs: object
    ) -> tuple[Array | tuple[Array, Aux], Scaling, Array, Tree]:
        """Return the loss, the scaling of the next step, whether all is finite, and the gradients."""
        ...


class Gradients(Protocol):
    """What :func:`filter_grad` returns."""

    def __call__(
        self, parameters: Tree, /, *args: object, **kwargs: object
    ) -> tuple[Scaling, Array, Tree] | tuple[Scaling, Array, Tree, Aux]:
        """Return the next scaling, whether all is finite, the gradients, and what else there is."""
        ...


def filter_value_and_grad(
    function: Callable[..., Array | tuple[Array, Aux]],
    scaling: Scaling,
    *,
    has_aux: bool = False,
    dtype: DTypeLike | None = jnp.float16,
) -> ValueAndGradients:
    """Return a function for the loss and its gradients, computed in a narrow dtype with a scaled loss.

    The gradient is divided by the scale that multiplied this loss; the scaling that is returned is the next
    step's. (The code published with MPX divides by the next one, and so applies gradients of half or twice
    their size on every step where the scale changes.)

    Args:
        function: ``function(parameters, *args, **kwargs)`` returns the loss, a scalar.
        scaling: of the loss; None scales nothing.
        has_aux: whether the function returns ``(loss, aux)``.
        dtype: of all floating-point arguments inside of the function; None leaves them as they are.

    Returns:
        A function of the same arguments that returns ``(value, scaling, finite, gradients)``: the loss, or
        ``(loss, aux)``; the scaling of the next step; whether all gradients are finite; and the gradients, in
        float32, of the floating-point arrays of the first argument, with None for its other leaves. It raises
        DTypeError for a loss of integers, which has no gradient, or of complex numbers.

    Raises:
        ArgumentError: ``scaling`` is something else, such as a number.
    """
    if not isinstance(scaling, DynamicLossScaling | None):
        raise ArgumentError(
            f"scaling={scaling!r:.60}; expected a DynamicLossScaling, or None: that of a recipe is"
            " DynamicLossScaling.of(recipe), a static one DynamicLossScaling(jnp.float32(1024), factor=1)"
        )

    def run(
        parameters: Tree, /, *args: object, **kwargs: object
    ) -> tuple[Array | tuple[Array, Aux], Scaling, Array, Tree]:
        floats, others = partition(parameters)

        def scaled(values: Tree) -> tuple[Array, tuple[Array, Aux]]:
            given = combine(values, others), args, kwargs
            whole, some, named = given if dtype is None else cast_tree(given, dtype)
            found = function(whole, *some, **named)
            loss, aux = cast(tuple[Array, Aux], found) if has_aux else (cast(Array, found), None)
            loss = jnp.asarray(loss)
            if not jnp.issubdtype(loss.dtype, jnp.floating):
                raise DTypeError(
                    f"the function returns a loss of {loss.dtype}; expected a real floating-point one"
                )
            return loss.astype(jnp.float32) if scaling is None else scaling.scale(loss), (loss, aux)

        gradients: Tree
        gradients, (loss, aux) = jax.grad(scaled, has_aux=True)(floats)
        wide = (
            cast_tree(gradients, jnp.float32) if scaling is None else scaling.unscale(gradients, loss.dtype)
        )
        finite = all_finite(wide)
        following = None if scaling is None else scaling.adjusted(finite)
        return (loss, aux) if has_aux else loss, following, finite, wide

    return run


def filter_grad(
    function: Callable[..., Array | tuple[Array, Aux]],
    scaling: Scaling,
    *,
    has_aux: bool = False,
    dtype: DTypeLike | None = jnp.float16,
) -> Gradients:
    """Return a function for the gradients alone; see :func:`filter_value_and_grad` for the arguments.

    Returns:
        A function that returns ``(scaling, finite, gradients)``, and ``aux`` behind them with ``has_aux``.
    """
    run = filter_value_and_grad(function, scaling, has_aux=has_aux, dtype=dtype)

    def gradients_alone(
        parameters: Tree, /, *args: object, **kwargs: object
    ) -> tuple[Scaling, Array, Tree] | tuple[Scaling, Array, Tree, Aux]:
        value, following, finite, gradients = run(parameters, *args, **kwargs)
        if not has_aux:
            return following, finite, gradients
        return following, finite, gradients, cast(tuple[Array, Aux], value)[1]

    return gradients_alone
