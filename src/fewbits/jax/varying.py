"""Arrays inside of ``jax.shard_map``, whose types say along which axes of the mesh they vary."""

from __future__ import annotations

import jax
from jax import Array, lax


def alike(x: Array, *others: Array | None) -> Array:
    """Return ``x`` as an array that varies along every axis of the mesh along which one of them does.

    JAX refuses a derivative of our own whose type is not that of the operand, as where another operand makes
    the result vary. What this returns has the type of both, and JAX sums its gradient over the devices.
    """
    wanted = frozenset[object]().union(*(_axes(other) for other in others if other is not None))
    missing = wanted - _axes(x)
    varying: Array = lax.pcast(x, tuple(missing), to="varying") if missing else x
    return varying


def _axes(x: Array) -> frozenset[object]:
    found: frozenset[object] = jax.typeof(x).manual_axis_type.varying
    return found
