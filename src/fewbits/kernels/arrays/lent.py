"""Conversions in memory that tensors lend, by the compiled kernels alone; what they need to know is kept.

A tensor is lent as a tuple of its address, its number of items and what they are: ``kernels/ops/tensors.py``.
"""

from __future__ import annotations

from collections.abc import Sequence

from fewbits.kernels import native
from fewbits.kernels.arrays.threads import threads
from fewbits.kernels.native import Plan, plan, reading_plan

__all__ = ["Plan", "dequantize", "fake_quantize", "plan", "quantize"]

Lent = tuple[int, ...]


def fake_quantize(planned: Plan, x: Lent, out: Lent, seed: int, amax: float | None) -> bool:
    """Write ``x``, of the plan's shape and layout, into ``out``; return whether it held NaN or infinity."""
    return native.fake_quantize_lent(planned, x, out, seed, amax, threads())


def quantize(planned: Plan, x: Lent, out: Sequence[Lent | None], seed: int, amax: float | None) -> bool:
    """Write the packed parts of ``x`` into ``out``; return whether x held NaN or infinity."""
    return native.quantize_lent(planned, x, out, seed, amax, threads())


def dequantize(q: Sequence[Lent | None], out: Lent, format: str, shape: tuple[int, ...], axis: int) -> bool:
    """Write the values of packed parts into ``out``; return whether a compiled kernel does that."""
    planned = reading_plan(format, shape, axis)
    if planned is None:
        return False
    native.dequantize_lent(planned, q, out, threads())
    return True
