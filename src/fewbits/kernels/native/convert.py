"""Quantize, fake-quantize and dequantize by the compiled kernels: one pass over memory."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from fewbits import _native
from fewbits.formats import Bdr, Block, Element, Format, shares_scale
from fewbits.formats.pattern import Pattern
from fewbits.kernels.layout import Packed
from fewbits.kernels.native.geometry import aligned, geometry, is_dense, one_line
from fewbits.kernels.native.isa import active_isa
from fewbits.kernels.native.plan import plan
from fewbits.kernels.options import Options, options
from fewbits.kernels.reals import largest_finite, widened

Array = NDArray[Any]

_TYPES = ("float32", "float16", "uint16")  # uint16: the bits of bfloat16


def supports(fmt: Format, chosen: Options, dtype: Any) -> bool:
    """Return whether the compiled kernels compute this case."""
    return np.dtype(dtype).name in _TYPES and plan(fmt, chosen) is not None


def fake_quantize(
    x: Array, out: Array, fmt: Format, axis: int, chosen: Options, amax: float | None, *, threads: int
) -> tuple[str, bool]:
    """Write ``x`` rounded to ``fmt`` into ``out``.

    Args:
        x: float32, float16, or uint16 that are the bits of bfloat16; any shape and strides.
        out: of x's shape and one of those types, in C order; does not overlap x.
        fmt: a format that :func:`supports` accepts with these options.
        axis: along which blocks lie, from the front.
        chosen: from :func:`fewbits.kernels.options.options`.
        amax: the largest magnitude of the whole tensor where x is a part of it.
        threads: most threads to use; small arrays use one.

    Returns:
        The instruction set that ran, and whether x held NaN or infinity; what ``saturate`` replaced does not
        count.

    Raises:
        ArgumentError: ``FEWBITS_ISA`` names an instruction set that cannot run.
    """
    p, x, where = _prepared(x, fmt, axis, chosen, amax, threads, packed=False)
    return _native.fake_quantize(p, where, x, out, threads)


def quantize(
    x: Array, out: Packed, fmt: Format, axis: int, chosen: Options, amax: float | None, *, threads: int
) -> bool:
    """Write the packed parts of ``x`` into ``out``; return whether x held NaN or infinity.

    Arguments and errors are those of :func:`fake_quantize`, but that ``out`` has parts in C order.
    """
    p, x, where = _prepared(x, fmt, axis, chosen, amax, threads, packed=True)
    _, nonfinite = _native.quantize(p, where, x, *out, threads)
    return nonfinite


def dequantize(q: Packed, out: Array, fmt: Format, axis: int, *, threads: int) -> None:
    """Write the values of ``q`` into ``out``, which is in C order, of one of the types of fake_quantize."""
    active_isa()
    p = _shared(fmt)
    where = one_line(out.size) if _joins(fmt, out.shape, axis) else geometry(out, axis)
    assert where is not None  # C order needs two axes at most
    _native.dequantize(p, where, *_dense(q), out, threads)


def supports_product(fmt: Format) -> bool:
    """Return whether :func:`gemv` computes with this format."""
    return plan(fmt, options(fmt)) is not None


def gemv(
    x: Array,
    q: Packed,
    y: Array,
    fmt: Format,
    sparsity: Pattern | None,
    zero: int,
    *,
    narrow: bool,
    threads: int,
) -> None:
    """Write ``x @ W.T`` into ``y``, straight from the packed bits of W.

    Args:
        x: (batch, n) float32 in C order.
        q: the parts of W, (lines, n), with its blocks along n.
        y: (batch, lines) float32 in C order.
        fmt: a format that :func:`supports_product` accepts.
        sparsity: of W, whose codes are streams then.
        zero: the code of what is not kept.
        narrow: whether every value of x is a normal bfloat16, or zero.
        threads: most threads to use.
    """
    active_isa()
    x = aligned(x)
    permuted = None
    if len(x) == 1:  # the order in which four-bit codes come apart; native/job.hpp
        whole = x[0, : x.shape[1] // 128 * 128].reshape(-1, 16, 8)
        permuted = np.ascontiguousarray(whole.swapaxes(1, 2))
    p = _shared(fmt)
    if sparsity is not None:
        p = _native.Format(p)
        p.keep, p.group, p.zero = sparsity.keep, sparsity.group, zero
    _native.gemv(p, x, narrow, permuted, *_dense(q), y, threads)


def magnitudes(x: Array, *, threads: int) -> tuple[float, float, bool]:
    """Return the largest finite and the smallest nonzero magnitude, and whether x holds NaN or infinity.

    The smallest is infinity where nothing is above zero.
    """
    x = aligned(x)
    where = one_line(x.size) if is_dense(x) else geometry(x, x.ndim - 1)
    if where is None:
        x = np.ascontiguousarray(x)
        where = one_line(x.size)
    return _native.magnitudes(where, x, threads)


def _prepared(
    x: Array, fmt: Format, axis: int, chosen: Options, amax: float | None, threads: int, *, packed: bool
) -> tuple[_native.Format, Array, _native.Geometry]:
    active_isa()  # refuses a wrong FEWBITS_ISA with a message for people
    p, x = plan(fmt, chosen), aligned(x)
    assert p is not None
    if chosen.rounding == "stochastic" or shares_scale(fmt, "tensor"):
        p = _native.Format(p)
        p.seed = chosen.seed
    if shares_scale(fmt, "tensor"):
        measured, bad = 0.0, False
        if amax is None or chosen.nonfinite == "block_nan":
            measured, _, bad = magnitudes(x, threads=threads)
            if chosen.nonfinite == "saturate" and bad and np.isinf(widened(x)).any():
                measured = largest_finite(x.dtype)  # what stands for infinity
        p.whole_known, p.whole = True, measured if amax is None else amax
        p.whole_bad = bad and chosen.nonfinite == "block_nan"
    where = one_line(x.size) if is_dense(x) and _joins(fmt, x.shape, axis) else geometry(x, axis)
    if where is None:
        x = np.ascontiguousarray(x)
        where = geometry(x, axis)
    assert where is not None
    return p, x, where


def _shared(fmt: Format) -> _native.Format:
    """Return the plan to read packed parts by."""
    p = plan(fmt, options(fmt))
    assert p is not None
    if shares_scale(fmt, "tensor"):
        p = _native.Format(p)
        p.whole_known = True
    return p


def _dense(q: Packed) -> Packed:
    return Packed(*(None if part is None else aligned(np.ascontiguousarray(part)) for part in q))  # type: ignore[arg-type]


def _joins(fmt: Format, shape: tuple[int, ...], axis: int) -> bool:
    """Return whether all lines of a dense array can be worked on as one: none shares a byte or a block."""
    n = shape[axis] if shape else 1
    last = axis == len(shape) - 1 or not shape
    if isinstance(fmt, Element):
        return last and n * fmt.bits % 8 == 0
    assert isinstance(fmt, Block | Bdr)
    if not last or n * fmt.element.bits % 8 or getattr(fmt, "outer_size", None) == "channel":
        return False
    if isinstance(fmt.size, str):
        return fmt.size == "tensor"
    whole = n % fmt.size == 0 and n // fmt.size * fmt.scale.bits % 8 == 0
    return whole and not (isinstance(fmt, Bdr) and n // fmt.k2 * fmt.d2 % 8)
