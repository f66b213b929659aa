"""The product of a linear layer as a recipe has it: three products, forward and backward."""

from __future__ import annotations

import math
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax

from fewbits.errors import ArgumentError, DTypeError
from fewbits.jax.conversions import DTYPES, native
from fewbits.jax.narrow_array import NarrowArray
from fewbits.jax.recipe_roles import VECTORS, check_key, check_recipe, rounded
from fewbits.jax.varying import alike
from fewbits.recipes import Recipe
from fewbits.recipes import recipe as read
from fewbits.recipes.recipe import OPERANDS

Shape = tuple[int, ...]


def linear(
    x: Array,
    weight: Array,
    recipe: str | Recipe,
    *,
    bias: Array | None = None,
    first: bool = False,
    last: bool = False,
    key: Array | None = None,
) -> Array:
    """Return ``x @ weight.T + bias`` with the operands of all three products rounded as a recipe says.

    The operands are those of :class:`fewbits.nn`'s layers, bit for bit unless they are drawn: each is rounded
    along the axis that its product sums over, from the array as it was before. Sums are float32, in an order
    that the backend chooses. Which layers follow the recipe the caller says by calling this. Under ``vmap``
    over the examples of a batch each is a batch of one, along which the gradient of the weight is rounded.

    NaN and infinity in an operand whose format has no NaN are refused where values are known; under ``jit``,
    ``vmap`` and ``grad`` they stay as they are.

    Args:
        x: (..., k).
        weight: (n, k), as Equinox and PyTorch have it; a kernel of Flax is its transpose. One that is not
            float32, bfloat16 or float16 is made float32 before it is rounded.
        recipe: a recipe, or its text.
        bias: (n,), or None.
        first: the layer is the model's first; some recipes leave its operands as they are.
        last: the layer gives the logits; some recipes leave its operands, or the gradient that enters it, as
            they are.
        key: of ``jax.random``, for a recipe that rounds operands stochastically.

    Returns:
        (..., n) in the recipe's vector format.

    Raises:
        DTypeError: x, weight or bias is no array of real numbers.
        ArgumentError: shapes do not fit, there is no such recipe, it does something that JAX's products do
            not, or a key is missing or not used.
    """
    x, weight = _real("x", x), _real("weight", weight)
    bias = None if bias is None else _real("bias", bias)
    _check_shapes(x.shape, weight.shape, None if bias is None else bias.shape)
    chosen = read(recipe)
    check_recipe(chosen)
    check_key(chosen, chosen.operands.values(), key, "operands")
    chosen = followed(chosen, first, last)
    rows = x.astype(VECTORS[chosen.vector])
    if weight.dtype not in DTYPES:
        weight = weight.astype(np.float32)
    y = _linear(alike(rows, weight, key), alike(weight, x, key), key, chosen, last)
    return y if bias is None else _add_bias(alike(y, bias), alike(bias, y))


def _real(name: str, given: object) -> Any:
    """Return an array of real numbers in the byte order of JAX.

    Raises DTypeError for what JAX would multiply only in part, as complex numbers, or not at all.
    """
    if isinstance(given, np.ma.MaskedArray) or not isinstance(given, jax.Array | np.ndarray):
        unpacked = ": call .dequantize() first" if isinstance(given, NarrowArray) else ""
        raise DTypeError(f"{name} is a {type(given).__name__}; expected an array of real numbers{unpacked}")
    array = native(given) if isinstance(given, np.ndarray) else given
    plain = isinstance(array.dtype, np.dtype)  # those of keys are JAX's own
    if not (plain and jnp.isdtype(array.dtype, ("bool", "integral", "real floating"))):
        raise DTypeError(f"{name} is an array of {array.dtype}; expected real numbers")
    return array


def _check_shapes(x: Shape, weight: Shape, bias: Shape | None) -> None:
    """Raise ArgumentError unless the shapes are those of a linear layer; another bias might broadcast."""
    if not (x and len(weight) == 2 and x[-1] == weight[1] and bias in (None, weight[:1])):
        and_bias = "" if bias is None else f" and bias {bias}"
        raise ArgumentError(
            f"linear of x {x}, weight {weight}{and_bias}; expected (..., k), (n, k), and (n,) for a bias"
        )


def followed(recipe: Recipe, first: bool, last: bool) -> Recipe:
    """Return the recipe that a layer follows: without operands for one that the recipe keeps as it is."""
    kept = (first and recipe.keep_first) or (last and recipe.keep_last)
    return recipe.extended(**dict.fromkeys(OPERANDS)) if kept else recipe


@jax.custom_vjp
def _add_bias(y: Array, bias: Array) -> Array:
    """Return ``y + bias``; the gradient of the bias is summed in float32, and XLA would sum 16 bits."""
    return y + jnp.broadcast_to(bias.astype(y.dtype), y.shape)


def _bias_forward(y: Array, bias: Array) -> tuple[Array, Array]:
    return _add_bias(y, bias), bias


def _bias_backward(bias: Array, gradient: Array) -> tuple[Array, Array]:
    total = gradient.astype(jnp.float32).sum(tuple(range(gradient.ndim - 1)))
    return gradient, total.astype(gradient.dtype).astype(bias.dtype)


_add_bias.defvjp(_bias_forward, _bias_backward)


def operand(
    role: str, x: Array, axis: int, recipe: Recipe, last: bool, key: Array | None, refuse: bool = False
) -> Array:
    """Return ``x`` as the operand ``role`` of a product that sums along ``axis``; same shape and dtype.

    ``refuse`` is that of :func:`fewbits.jax.recipe_roles.rounded`.
    """
    target = getattr(recipe, role)
    if target is None or (last and role.endswith("gradient") and not recipe.logit_gradient):
        return x
    # A dynamic loss scale backs off where a gradient overflows: it has to see that.
    scaled = role.endswith("gradient") and recipe.scaling is not None and recipe.scaling.dynamic
    own = None if key is None else jax.random.fold_in(key, OPERANDS.index(role))
    return rounded(x, target, axis, overflow=None if scaled else "saturate", key=own, refuse=refuse)


def _rows(x: Array) -> Array:
    """Return ``x``, (..., k), as a matrix; no size may be left to reshape where k is 0."""
    return x.reshape(math.prod(x.shape[:-1]), x.shape[-1])


def _multiply(a: Array, b: Array) -> Array:
    """Return ``a @ b``, summed in float32, in a's dtype."""
    wide = jnp.matmul(
        a, b.astype(a.dtype), precision=lax.Precision.HIGHEST, preferred_element_type=jnp.float32
    )
    return wide.astype(a.dtype)


@partial(jax.custom_vjp, nondiff_argnums=(3, 4))
def _linear(x: Array, weight: Array, key: Array | None, recipe: Recipe, last: bool) -> Array:
    return _product(x, weight, key, recipe, last, refuse=True)


def _product(x: Array, weight: Array, key: Array | None, recipe: Recipe, last: bool, refuse: bool) -> Array:
    a = operand("forward_activation", _rows(x), 1, recipe, last, key, refuse)
    b = operand("forward_weight", weight, 1, recipe, last, key, refuse)
    return _multiply(a, b.T).reshape((*x.shape[:-1], weight.shape[0]))


def _forward(
    x: Array, weight: Array, key: Array | None, recipe: Recipe, last: bool
) -> tuple[Array, tuple[Array, Array, Array | None]]:
    # Under grad alone JAX shows values here, of which NaN stays as under jit.
    return _product(x, weight, key, recipe, last, refuse=False), (x, weight, key)


def _backward(
    recipe: Recipe, last: bool, saved: tuple[Array, Array, Array | None], gradient: Array
) -> tuple[Array, Array, None]:
    x, weight, key = saved
    g, rows = _rows(gradient), _rows(x)
    of_x = _multiply(
        operand("dx_gradient", g, 1, recipe, last, key), operand("dx_weight", weight, 0, recipe, last, key)
    )
    of_weight = _multiply(
        operand("dw_gradient", g, 0, recipe, last, key).T,
        operand("dw_activation", rows, 0, recipe, last, key),
    )
    return of_x.reshape(x.shape), of_weight.astype(weight.dtype), None


_linear.defvjp(_forward, _backward)
