"""Steps of an optimizer: skipped where a gradient overflowed, on parameters held as a recipe says."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any, Generic, Protocol

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from fewbits.errors import ArgumentError
from fewbits.jax.recipe_roles import VECTORS, check_key, check_recipe, rounded
from fewbits.jax.trees import (
    Tree,
    cast_tree,
    combine,
    is_floating,
    is_narrow,
    one_boolean,
    partition,
    select,
)
from fewbits.recipes import Recipe, RoleFormat
from fewbits.recipes import recipe as read


class Transformation(Protocol):
    """What is needed of an optimizer: the two functions of ``optax.GradientTransformation``."""

    def init(self, parameters: Any, /) -> Any:
        """Return a state."""

    def update(self, gradients: Any, state: Any, parameters: Any, /) -> tuple[Any, Any]:
        """Return updates and the next state."""


def optimizer_update(
    parameters: Tree, optimizer: Transformation, state: object, gradients: Tree, finite: Array
) -> tuple[Tree, object]:
    """Return the parameters and the state after a step, or as they were if the gradients are not finite.

    Sums are float32, or float64 where one of the two is, and rounded once to the type of the parameter.

    Args:
        parameters: any tree; its floating-point arrays are stepped, the rest is returned as it is.
        optimizer: of Optax, or anything with its ``init`` and ``update``.
        state: of the optimizer, made by its ``init`` of the floating-point arrays of the tree.
        gradients: of those arrays, unscaled, with None for other leaves.
        finite: whether all gradients are, as :func:`fewbits.jax.filter_grad` returns it.

    Raises:
        ArgumentError: ``finite`` is not one boolean.
    """
    step = one_boolean(finite)
    floats, others = partition(parameters)
    updates, following = optimizer.update(gradients, state, floats)
    stepped = jax.tree.map(_added, floats, updates)
    return combine(select(step, stepped, floats), others), select(step, following, state)


def _added(parameter: Array, update: Array) -> Array:
    # By NumPy, float32 or wider: JAX may be set to promote nothing.
    wide = np.promote_types(np.promote_types(np.float32, parameter.dtype), update.dtype)
    return (parameter.astype(wide) + update.astype(wide)).astype(parameter.dtype)


@partial(jax.tree_util.register_dataclass, data_fields=("inner", "master"), meta_fields=())
@dataclass(frozen=True)
class RecipeState(Generic[Tree]):
    """What a :class:`RecipeOptimizer` holds between steps, a pytree.

    Attributes:
        inner: the state of the optimizer, its arrays in the recipe's moment format, single numbers float32.
        master: the parameters that updates are added to, in the recipe's master format; None without.
    """

    inner: object
    master: Tree | None


@dataclass(frozen=True)
class RecipeOptimizer:
    """An optimizer of Optax on parameters, moments and gradients that are held as a recipe says.

    Arithmetic is float32: a step widens parameters and state and rounds them back. What is bfloat16 or
    float16 in the recipe has that dtype; other formats are float32 arrays of rounded values.

    Args:
        optimizer: of Optax, or anything with its ``init`` and ``update``.
        recipe: a recipe or its text, such as ``fp16-master`` or ``bf16-only``.

    Raises:
        ArgumentError: no such recipe, or one with a Kahan sum, moments in two formats, a shift, a loss scale
            over narrow gradients, or what :func:`fewbits.jax.linear` refuses.
    """

    optimizer: Transformation
    recipe: str | Recipe

    def __post_init__(self) -> None:
        recipe = read(self.recipe)
        object.__setattr__(self, "recipe", recipe)
        check_recipe(recipe)
        roles = (recipe.parameter, recipe.master, recipe.held_gradient, recipe.first_moment)
        if recipe.parameter is not None and recipe.update == "kahan" and not recipe.has_master:
            raise ArgumentError(f"recipe {recipe.name!r} has update=kahan, which fewbits.jax does not do")
        if recipe.first_moment != recipe.second_moment:
            raise ArgumentError(
                f"recipe {recipe.name!r} holds first moments in {recipe.first_moment}, second ones in"
                f" {recipe.second_moment}; in a state of Optax they look alike: give both one format"
            )
        if recipe.held_gradient is not None and recipe.scaling is not None:
            raise ArgumentError(
                f"recipe {recipe.name!r} scales the loss and holds gradients in {recipe.held_gradient}; here"
                " they would be rounded after they are unscaled, where small ones are lost: take"
                " held_gradient=fp32"
            )
        if any(role is not None and role.shift is not None for role in roles):
            raise ArgumentError(f"recipe {recipe.name!r} stores with a shift, which fewbits.jax does not do")

    def init(self, parameters: Tree, *, key: Array | None = None) -> tuple[Tree, RecipeState[Tree]]:
        """Return the parameters as the recipe holds them, and the state before the first step.

        Args:
            parameters: any tree; floating-point arrays of another type are made float32 first.
            key: of ``jax.random``, for roles that are stored with stochastic rounding; ``update=stochastic``
                alone draws nothing here.

        Raises:
            ArgumentError: a key is missing or not used.
        """
        recipe = read(self.recipe)
        master = recipe.master if recipe.has_master else None
        check_key(recipe, (recipe.parameter, recipe.first_moment, master), key, "what they store")
        keys = _split(key, 3)
        floats, others = partition(parameters)
        wide = _widened(floats)  # first: bfloat16 would round what it is given of another format
        state = _held(_widened(self.optimizer.init(wide)), recipe.first_moment, keys[0])
        kept = _held(wide, master, keys[1], scalars=True) if recipe.has_master and recipe.parameter else None
        narrow = _held(wide, recipe.parameter, keys[2], scalars=True)
        return combine(narrow, others), RecipeState(state, kept)

    def update(
        self,
        parameters: Tree,
        state: RecipeState[Tree],
        gradients: Tree,
        *,
        finite: Array | bool | None = None,
        key: Array | None = None,
    ) -> tuple[Tree, RecipeState[Tree]]:
        """Return the parameters and the state after a step, or as they were if ``finite`` is false.

        What is stored in a format without NaN refuses NaN and infinity where values are known; under ``jit``
        they stay as they are. A gradient that is held narrow and is not finite is NaN as a whole.

        Args:
            parameters: as :meth:`init` or this method returned them.
            state: likewise.
            gradients: of the floating-point arrays, unscaled, with None for other leaves.
            finite: whether all gradients are; true by default, which a recipe that scales the loss refuses.
            key: of ``jax.random``, for recipes that store with stochastic rounding; another one each step.

        Raises:
            ArgumentError: a key is missing or not used, or ``finite`` is missing or not one boolean.
        """
        recipe = read(self.recipe)
        if recipe.scaling is not None and finite is None:
            raise ArgumentError(
                f"recipe {recipe.name!r} scales the loss ({recipe.scaling}), and finite=None: pass finite and"
                " gradients as fewbits.jax.filter_value_and_grad returns them with"
                " DynamicLossScaling.of(recipe), or take scaling=none"
            )
        narrow, others = partition(parameters)
        target = recipe.parameter
        if target is not None and recipe.update == "stochastic" and not recipe.has_master:
            target = RoleFormat(target.format, "stochastic", target.scale_rule)
        master = recipe.master if recipe.has_master else None
        stored = (target, recipe.held_gradient, recipe.first_moment, master)
        check_key(recipe, stored, key, "what they store")
        keys = _split(key, 4)
        step = one_boolean(True if finite is None else finite)
        wide, before = _widened((narrow if state.master is None else state.master, state.inner))
        held = _held_gradients(_widened(gradients), recipe.held_gradient, keys[0])
        updates, inner = _widened(self.optimizer.update(held, before, wide))
        # A skipped step has nothing to store: its NaN would be refused by formats that have none.
        stepped, inner = select(step, (jax.tree.map(jnp.add, wide, updates), inner), (wide, before))
        kept = None if state.master is None else _held(stepped, master, keys[1], scalars=True)
        source = stepped if kept is None else _widened(kept)
        rounded_parameters = _held(source, target, keys[2], scalars=True)
        following = RecipeState(_held(inner, recipe.first_moment, keys[3]), kept)
        chosen = select(step, (rounded_parameters, following), (narrow, state))
        return combine(chosen[0], others), chosen[1]


def _split(key: Array | None, count: int) -> list[Array | None]:
    return [None] * count if key is None else list(jax.random.split(key, count))


def _widened(tree: Tree) -> Tree:
    return cast_tree(tree, jnp.float32)


def _held_gradients(tree: Tree, target: RoleFormat | None, key: Array | None) -> Tree:
    """Return gradients as they are held, NaN as a whole where one is not finite, as in fewbits.optim."""
    if target is None:
        return tree
    finite = jax.tree.map(lambda g: jnp.isfinite(g).all(), tree)
    kept = jax.tree.map(lambda g, good: jnp.where(good, g, 0), tree, finite)
    held = _widened(_held(kept, target, key, overflow=None, scalars=True))
    whole: Tree = jax.tree.map(lambda g, good: jnp.where(good, g, jnp.nan), held, finite)
    return whole


def _held(
    tree: Tree,
    target: RoleFormat | None,
    key: Array | None = None,
    *,
    overflow: str | None = "saturate",
    scalars: bool = False,
) -> Tree:
    """Return float32 arrays as they are stored; single numbers of an optimizer's state stay wide."""
    if target is None:
        return tree
    leaves, structure = jax.tree.flatten(tree, is_leaf=is_narrow)
    dtype = VECTORS.get(str(target.format), jnp.float32)
    for i, leaf in enumerate(leaves):
        if not is_floating(leaf) or not (leaf.ndim or scalars):
            continue
        if dtype != jnp.float32 and target.rounding == "nearest_even":
            leaves[i] = leaf.astype(dtype)  # JAX's own conversion, which goes to infinity as fewbits.optim's
            continue
        own = None if key is None else jax.random.fold_in(key, i)
        leaves[i] = rounded(jnp.asarray(leaf), target, overflow=overflow, key=own).astype(dtype)
    whole: Tree = jax.tree.unflatten(structure, leaves)
    return whole
