"""Narrow formats and mixed precision for JAX: integer arithmetic on bits that equals the definition.

* ``conversions.py``: quantize and fake_quantize; ``narrow_array.py``: what the first returns.
* ``numbers.py``: floats taken apart into integers, and their float32 products and quotients.
* ``elements.py``, ``thresholds.py``, ``scales.py``, ``blocks.py``, ``packing.py``: the steps of a conversion;
  ``varying.py``: what their derivatives need inside of ``jax.shard_map``.
* ``linear.py``, ``optimizer.py``: what :mod:`fewbits.nn` and :mod:`fewbits.optim` do, for recipes in JAX;
  ``recipe_roles.py``: what both need.
* ``trees.py``, ``loss_scaling.py``, ``gradients.py``: mixed precision in float16 or bfloat16, after MPX.

Needs JAX, not torch.
"""

from fewbits.errors import MissingDependencyError

try:
    import jax as _jax
except ImportError as error:
    raise MissingDependencyError(
        "fewbits.jax needs JAX, which is not installed; on Python 3.11 or later, pip install 'fewbits[jax]'"
    ) from error

from fewbits.jax.conversions import fake_quantize, quantize
from fewbits.jax.gradients import filter_grad, filter_value_and_grad
from fewbits.jax.linear import linear
from fewbits.jax.loss_scaling import DynamicLossScaling
from fewbits.jax.narrow_array import NarrowArray
from fewbits.jax.optimizer import RecipeOptimizer, RecipeState, optimizer_update
from fewbits.jax.trees import all_finite, cast_function, cast_tree, force_full_precision

del _jax

__all__ = [
    "DynamicLossScaling",
    "NarrowArray",
    "RecipeOptimizer",
    "RecipeState",
    "all_finite",
    "cast_function",
    "cast_tree",
    "fake_quantize",
    "filter_grad",
    "filter_value_and_grad",
    "force_full_precision",
    "linear",
    "optimizer_update",
    "quantize",
]
