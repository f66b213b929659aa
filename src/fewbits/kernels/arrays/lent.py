"""Conversions in memory that tensors lend, by the compiled kernels alone; what they need to know is kept.

A tensor is lent as a tuple of its address, its number of items and what they are: ``kernels/ops/tensors.py``.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

from fewbits.kernels import native
from fewbits.kernels.arrays.nm import zeros
from fewbits.kernels.arrays.threads import threads
from fewbits.kernels.bits.options import read_format
from fewbits.kernels.native import Plan, plan, reading_plan

__all__ = ["Plan", "dequantize", "fake_quantize", "gemv", "plan", "quantize"]

Lent = tuple[int, ...]


def fake_quantize(planned: Plan, x: Lent, out: Lent, seed: int, amax: float | None) -> bool:
    """Write ``x``, of the plan's shape and layout, into ``out``; return whether it held NaN or infinity."""
    return native.fake_quantize_lent(planned, x, out, seed, amax, threads())


def quantize(planned: Plan, x: Lent, out: Sequence[Lent | None], seed: int, amax: float | None) -> bool:
    """Write the packed parts of ``x`` into ``out``; return whether x held NaN or infinity."""
    return native.quantize_lent(planned, x, out, seed, amax, threads())


def dequantize(
    q: Sequence[Lent | None], out: Lent, format: str, shape: tuple[int, ...], axis: int, *, add: bool = False
) -> bool:
    """Write the values of packed parts into ``out``; return whether a compiled kernel does that.

    With ``add``, add them to ``out``, which is then (n,) float32.
    """
    planned = reading_plan(format, shape, axis)
    if planned is None:
        return False
    native.dequantize_lent(planned, q, out, threads(), add=add)
    return True


def gemv(
    x: Lent,
    q: Sequence[Lent | None],
    y: Lent,
    format: str,
    sparsity: str | None,
    *,
    bfloat16: bool,
) -> bool:
    """Write ``x @ W.T`` into ``y``; return whether a compiled kernel does that.

    Arguments are those of :func:`fewbits.kernels.arrays.products.gemv`.
    """
    p = native.gemv_format(format, sparsity, 0 if sparsity is None else _zero(format))
    if p is None:
        return False
    native.gemv_lent(p, x, q, y, bfloat16=bfloat16, threads=threads())
    return True


@lru_cache(maxsize=256)
def _zero(format: str) -> int:
    return zeros(read_format(format))[0]
