"""Trees of arrays in another floating-point type: what is no floating-point array stays as it is."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any, ParamSpec, TypeGuard, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.typing import DTypeLike
from numpy.typing import NDArray

from fewbits.errors import ArgumentError
from fewbits.jax.narrow_array import NarrowArray

Tree = TypeVar("Tree")
P = ParamSpec("P")
Result = TypeVar("Result")


def is_floating(leaf: object) -> TypeGuard[Array]:
    """Return whether a leaf is an array of floating-point numbers: not integers, booleans or keys."""
    return isinstance(leaf, jax.Array | np.ndarray) and bool(jnp.issubdtype(leaf.dtype, jnp.floating))


def is_narrow(node: object) -> bool:
    """Return whether a node is one leaf here: an outer scale that is cast or stepped changes every value."""
    return isinstance(node, NarrowArray)


def cast_tree(tree: Tree, dtype: DTypeLike) -> Tree:
    """Return a tree whose floating-point arrays have another dtype.

    Integers, booleans, keys of ``jax.random``, a :class:`NarrowArray` with its scales, numbers of Python,
    functions and whatever else a leaf may be are returned as they are: a number of Python that goes through
    ``jit`` comes out of it as an array, and is cast from then on. Conversion is JAX's own, of NumPy's arrays
    NumPy's, to nearest even, where float64 may be rounded to float32 on its way; gradients pass.

    Args:
        tree: any pytree: a module of Equinox, parameters of Flax, a batch.
        dtype: such as ``jnp.float16``.
    """
    cast: Tree = jax.tree.map(
        lambda leaf: jnp.asarray(leaf.astype(dtype)) if is_floating(leaf) else leaf, tree, is_leaf=is_narrow
    )
    return cast


def cast_function(
    function: Callable[P, Result], dtype: DTypeLike, return_dtype: DTypeLike | None = None
) -> Callable[P, Result]:
    """Return a function that casts its arguments to a dtype, and what it returns to another one.

    Args:
        function: of any trees.
        dtype: of the floating-point arrays that ``function`` sees.
        return_dtype: of those that it returns; None leaves them as they are.
    """

    @wraps(function)
    def cast(*args: P.args, **kwargs: P.kwargs) -> Result:
        some, named = cast_tree((args, kwargs), dtype)
        found = function(*some, **named)
        return found if return_dtype is None else cast_tree(found, return_dtype)

    return cast


def force_full_precision(
    function: Callable[P, Result], return_dtype: DTypeLike | None = None
) -> Callable[P, Result]:
    """Return a function that computes in float32 whatever it is given: for sums, softmax, norms and losses.

    Args:
        function: of any trees.
        return_dtype: of what it returns; None leaves it as it is, float32 for most functions.
    """
    return cast_function(function, jnp.float32, return_dtype)


def partition(tree: Tree) -> tuple[Tree, Tree]:
    """Return the floating-point arrays of a tree and the rest of it, each with None for the other part."""
    floats: Tree = jax.tree.map(lambda leaf: leaf if is_floating(leaf) else None, tree, is_leaf=is_narrow)
    others: Tree = jax.tree.map(lambda leaf: None if is_floating(leaf) else leaf, tree, is_leaf=is_narrow)
    return floats, others


def combine(floats: Tree, others: Tree) -> Tree:
    """Return the tree that :func:`partition` was called with."""
    whole: Tree = jax.tree.map(
        lambda a, b: b if a is None else a, floats, others, is_leaf=lambda leaf: leaf is None
    )
    return whole


def all_finite(tree: object) -> Array:
    """Return whether no floating-point array of a tree holds NaN or infinity: a boolean array, for jit."""
    leaves: list[Array | NDArray[Any]] = [*filter(is_floating, jax.tree.leaves(tree, is_leaf=is_narrow))]
    # JAX would make infinity of float64 beyond float32, and knows one byte order.
    found = [(np if isinstance(leaf, np.ndarray) else jnp).isfinite(leaf).all() for leaf in leaves]
    return jnp.stack(found).all() if found else jnp.asarray(True)


def one_boolean(finite: object) -> Array:
    """Return whether all gradients are finite, as an array of JAX.

    Raises:
        ArgumentError: it is not one boolean: a mask would step some of the numbers.
    """
    kinds = (np.bool_, np.integer)  # the least of all devices is an integer
    if isinstance(finite, np.ndarray | jax.Array):
        single = finite.shape == () and any(jnp.issubdtype(finite.dtype, kind) for kind in kinds)
        shown = f"an array of {finite.dtype}{list(finite.shape)}"
    else:
        single, shown = isinstance(finite, int | np.integer | np.bool_), f"{finite!r:.60}"
    if not single:
        raise ArgumentError(f"finite={shown}; expected one boolean, as fewbits.jax.all_finite returns it")
    return jnp.asarray(finite).astype(np.bool_)


def select(condition: Array, new: Tree, old: Tree) -> Tree:
    """Return arrays and numbers of ``new`` where a condition holds, else of ``old``; other leaves are new."""
    numeric = jax.Array | np.ndarray | np.number | np.bool_ | int | float | complex
    chosen: Tree = jax.tree.map(
        lambda a, b: jnp.where(condition, a, b) if isinstance(a, numeric) else a, new, old
    )
    return chosen
