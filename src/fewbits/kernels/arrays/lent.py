"""Conversions in memory that tensors lend, by the compiled kernels alone; what they need to know is kept.

A tensor is lent as a tuple of its address, its number of items and what they are: ``kernels/ops/tensors.py``.
An array lends itself.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fewbits.errors import FewbitsError
from fewbits.formats import Format, parse
from fewbits.kernels import native
from fewbits.kernels.arrays.nm import zeros
from fewbits.kernels.arrays.threads import threads
from fewbits.kernels.bits.layout import layout
from fewbits.kernels.bits.options import Choices, decide, read_format
from fewbits.kernels.native import Plan, ask_for_huge_pages, plan, reading_plan

__all__ = [
    "Plan", "Rounding", "ask_for_huge_pages", "dequantize", "fake_quantize", "gemv", "lends", "plan",
    "quantize", "rounding", "takes",
]  # fmt: skip

Lent = NDArray[Any] | tuple[int, ...]
_ARRAYS = (np.dtype(np.float32), np.dtype(np.float16))  # in the byte order of the machine


def lends(x: NDArray[Any]) -> bool:
    """Return whether kernels read an array where it lies: ordinary, in C order, float32 or float16."""
    return type(x) is np.ndarray and x.dtype in _ARRAYS and x.flags.c_contiguous and x.flags.aligned


def takes(out: Any, x: NDArray[Any]) -> bool:
    """Return whether kernels may write to ``out`` what becomes of ``x``, which they read where it lies."""
    return (
        lends(out)
        and (out.dtype, out.shape) == (x.dtype, x.shape)
        and out.flags.writeable
        and not np.may_share_memory(out, x)
    )


class Rounding(NamedTuple):
    """A call of ``quantize`` or ``fake_quantize`` on values in C order, once its arguments are checked."""

    plan: Plan
    format: Format
    axis: int  # along which blocks lie, from the front
    parts: tuple[tuple[int, ...] | None, ...]  # shapes of what is packed; None for parts it lacks


def rounding(
    format: str | Format, axis: int, shape: tuple[int, ...], choices: tuple[Any, ...]
) -> Rounding | None:
    """Return what a call with these arguments needs, which takes longer to check and find than to use.

    Args:
        format: a format, or its text.
        axis: along which blocks lie; negative ones count from the end.
        shape: of the values.
        choices: the fields of :class:`fewbits.kernels.bits.options.Choices`.

    Returns:
        None where an argument is wrong, and the caller's own checks say how; and where no compiled kernel
        rounds such values alone.

    Raises:
        ArgumentError: ``FEWBITS_ISA`` names an instruction set that cannot run.
    """
    if type(axis) is not int:
        return None
    try:
        return _rounding(format, axis, shape, *choices)
    except TypeError:  # what cannot be hashed is no format and no choice
        return None


@lru_cache(maxsize=1024, typed=True)  # as those of what is decided
def _rounding(format: str | Format, axis: int, shape: tuple[int, ...], *choices: Any) -> Rounding | None:
    ndim = max(len(shape), 1)
    if not -ndim <= axis < ndim or 0 in shape:
        return None
    try:
        target = parse(format)
        chosen = decide(target, Choices(*choices))
    except FewbitsError:
        return None
    front = axis % ndim
    planned = plan(target.grammar, chosen.text, tuple(shape), None, front)
    if planned is None or decided_by_infinity(planned):
        return None
    return Rounding(planned, target, front, layout(target, tuple(shape), front))


def decided_by_infinity(planned: Plan) -> bool:
    """Return whether an infinity would choose a scale that all share, as the largest number of a dtype.

    That is rare, and left to :mod:`fewbits.kernels.arrays.conversions`.
    """
    return planned.shared and planned.nonfinite == "saturate"


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
    batch: int,
    q: Sequence[Lent | None],
    y: Lent,
    format: str,
    sparsity: str | None,
    activation: Format | None,
) -> bool:
    """Write ``x @ W.T`` into ``y``; return whether a compiled kernel does that.

    ``x`` are ``batch`` rows, of the type of y, rounded first to ``activation`` if it is one; other arguments
    are those of :func:`fewbits.kernels.arrays.products.gemv`.
    """
    p = native.gemv_format(format, sparsity, 0 if sparsity is None else _zero(format))
    if p is None:
        return False
    native.gemv_lent(p, x, batch, q, y, threads(), activation)
    return True


@lru_cache(maxsize=256)
def _zero(format: str) -> int:
    return zeros(read_format(format))[0]
