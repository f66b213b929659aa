"""Operations on NumPy arrays, any axis; each takes the fastest backend that equals the definition.

Arrays are float64, float32, float16, or uint16 that holds the bits of bfloat16.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fewbits.errors import DataError
from fewbits.formats import Format, shares_scale
from fewbits.formats.pattern import Pattern
from fewbits.kernels import native, reference, sparse_stream
from fewbits.kernels.layout import Packed, empty, empty_aligned, packed, unpacked
from fewbits.kernels.native import exact_arithmetic
from fewbits.kernels.options import Options, check_scale_rule, has_scale_rule, options
from fewbits.kernels.reals import BFLOAT16, narrowed, widened, without_infinity

Array = NDArray[Any]

__all__ = [
    "BFLOAT16",
    "Options",
    "Packed",
    "addition_product",
    "bfloat16_product",
    "check_scale_rule",
    "dequantize",
    "exact_arithmetic",
    "fake_quantize",
    "gemv",
    "has_bfloat16_products",
    "has_scale_rule",
    "largest",
    "limits",
    "options",
    "quantize",
    "smallest",
    "threads",
]

_SMALLEST_NORMAL = 2.0**-126  # of bfloat16 and float32
_CHUNK = 1 << 18  # values worked on at once: the definition needs some twenty times their bytes


@exact_arithmetic()
def quantize(
    x: Array, fmt: Format, axis: int, chosen: Options, amax: float | None = None, out: Packed | None = None
) -> Packed:
    """Return packed codes and scales with the block axis last; see :func:`reference.quantize`.

    ``out``, if given, are parts of the right shapes in C order that take the result.
    """
    axis = _front(axis, x.ndim)
    if x.size and native.supports(fmt, chosen, x.dtype):
        whole = empty(fmt, x.shape, axis) if out is None else out
        nonfinite = native.quantize(x, whole, fmt, axis, chosen, amax, threads=threads())
        if nonfinite and chosen.nonfinite == "raise":
            _refuse(x, fmt, chosen)
        return whole
    lines, positions = _last(_finite(x, chosen), axis), _positions(x, axis, chosen)
    found = packed(reference.quantize(lines, fmt, chosen, amax, positions), fmt)
    for part, values in zip(out or (), found, strict=out is not None):
        if part is not None and values is not None:
            part[...] = values
    return found if out is None else out


@exact_arithmetic()
def dequantize(
    q: Packed, fmt: Format, shape: tuple[int, ...], axis: int, dtype: Any, out: Array | None = None
) -> Array:
    """Return the values of ``q`` in a new array of ``shape``, or in ``out``."""
    dtype, axis = np.dtype(dtype), _front(axis, len(shape))
    whole = empty_aligned(shape, dtype) if out is None else out
    if whole.size and native.supports(fmt, options(fmt), dtype):
        native.dequantize(q, whole, fmt, axis, threads=threads())
        return whole
    wide = np.float64 if dtype == np.float64 else np.float32
    lines = reference.dequantize(unpacked(q, fmt, shape, axis), fmt, wide)
    whole[...] = narrowed(_restored(lines, shape, axis), dtype)
    return whole


@exact_arithmetic()
def fake_quantize(
    x: Array, fmt: Format, axis: int, chosen: Options, amax: float | None = None, out: Array | None = None
) -> Array:
    """Return ``x`` rounded to ``fmt``: the values of :func:`quantize`, in x's type and shape.

    ``out``, if given, is an array of that type and shape in C order that does not overlap x.
    """
    axis = _front(axis, x.ndim)
    whole = empty_aligned(x.shape, x.dtype) if out is None else out
    if x.size and native.supports(fmt, chosen, x.dtype):
        _, nonfinite = native.fake_quantize(x, whole, fmt, axis, chosen, amax, threads=threads())
        if nonfinite and chosen.nonfinite == "raise":
            _refuse(x, fmt, chosen)
    else:
        whole[...] = narrowed(_by_definition(_finite(x, chosen), fmt, axis, chosen, amax), x.dtype)
    return whole


@exact_arithmetic()
def gemv(
    x: Array,
    q: Packed,
    fmt: Format,
    lines: int,
    sparsity: Pattern | None = None,
    *,
    narrow: bool = False,
    out: Array | None = None,
) -> Array:
    """Return ``x @ W.T`` for a packed W of shape (lines, n) with its blocks along n.

    Meant for few rows of ``x``, (batch, n) float32: W is decoded once for every sixteen of them, in registers
    or in the nearest cache, and never to memory. Sums are float32; with u = 2^-24, the error is at most
    (n + 2) u sum |x| |W|. With ``sparsity`` the codes of W are streams, and the result is that of W with all
    its codes, bit for bit. ``narrow`` says that every value of x is a bfloat16. ``out``, if given, is
    (batch, lines) float32 in C order and takes the result, here and in the other products.
    """
    y = empty_aligned((x.shape[0], lines), np.float32) if out is None else out
    if x.size and lines and native.supports_product(fmt):
        narrow = narrow and smallest(x) >= _SMALLEST_NORMAL
        zero = 0 if sparsity is None else sparse_stream.zeros(fmt)[0]
        whole = np.ascontiguousarray(x)
        native.gemv(whole, q, y, fmt, sparsity, zero, narrow=narrow, threads=threads())
        return y
    if sparsity is not None:
        q = q._replace(codes=sparse_stream.expand(q.codes, fmt, x.shape[1], sparsity, threads()))
    return np.matmul(x, dequantize(q, fmt, (lines, x.shape[1]), 1, np.float32).T, out=y)


def has_bfloat16_products() -> bool:
    """Return whether :func:`bfloat16_product` runs on this CPU."""
    return native.has_bfloat16_products()


def bfloat16_product(a: Array, b: Array, out: Array | None = None) -> Array:
    """Return ``a @ b``, summed in float32, for float32 matrices of normal bfloat16 values and zeros."""
    y = empty_aligned((a.shape[0], b.shape[1]), np.float32) if out is None else out
    native.bfloat16_product(np.ascontiguousarray(a), np.ascontiguousarray(b), y, threads=threads())
    return y


def addition_product(a: Array, b: Array, out: Array | None = None) -> Array:
    """Return ``a @ b`` of float32 matrices, each product one integer sum of bit patterns.

    Equal to :func:`fewbits.kernels.reference.additions.product`, which is the definition, bit for bit.
    """
    y = empty_aligned((a.shape[0], b.shape[1]), np.float32) if out is None else out
    native.addition_product(np.ascontiguousarray(a), np.ascontiguousarray(b), y, threads=threads())
    return y


@exact_arithmetic()
def limits(x: Array, fmt: Format, axis: int, chosen: Options, amax: float | None = None) -> Array:
    """Return the largest magnitude each value could have kept, broadcastable to ``x``."""
    found = reference.limits(_last(_finite(x, chosen), axis), fmt, chosen, amax)
    return np.moveaxis(found, -1, axis) if x.ndim else found.reshape(())


@exact_arithmetic()
def largest(x: Array) -> float:
    """Return the largest magnitude of a finite ``x``; zero where it is empty."""
    return float(max(x.max(initial=0), -x.min(initial=0)))


def smallest(x: Array) -> float:
    """Return the smallest magnitude above zero of a float32 ``x``; infinity where there is none."""
    return native.magnitudes(x, threads=threads())[1]


def threads() -> int:
    """Return how many threads a kernel may use.

    torch's setting where torch is in use, else ``OMP_NUM_THREADS``, else the cores that this process may run
    on.
    """
    torch = sys.modules.get("torch")
    if torch is not None:
        return int(torch.get_num_threads())
    first = os.environ.get("OMP_NUM_THREADS", "").partition(",")[0].strip()  # a list is for nested teams
    if first.isdecimal() and int(first) > 0:
        return int(first)
    may_run = getattr(os, "sched_getaffinity", None)  # not on every system
    return len(may_run(0)) if may_run else os.cpu_count() or 1


def _front(axis: int, ndim: int) -> int:
    return axis % ndim if ndim else 0


def _by_definition(x: Array, fmt: Format, axis: int, chosen: Options, amax: float | None) -> Array:
    lines, positions = _last(x, axis), _positions(x, axis, chosen)
    out = np.empty(lines.shape, x.dtype)
    pieces = _chunks(lines)
    if amax is None and shares_scale(fmt, "tensor"):
        # A NaN or an infinity anywhere may decide the scale of the whole tensor: then it is worked on whole.
        amax = largest(x) if np.isfinite(x).all() else None
        pieces = pieces if amax is not None else iter([slice(None)])
    for rows in pieces:
        here = None if positions is None else positions[rows]
        parts = reference.quantize(lines[rows], fmt, chosen, amax, here)
        out[rows] = reference.dequantize(parts, fmt, x.dtype)
    return _restored(out, x.shape, axis)


def _finite(x: Array, chosen: Options) -> Array:
    """Return ``x`` as the definition takes it; an infinity counts as the largest value of x's own type."""
    return without_infinity(x) if chosen.nonfinite == "saturate" else widened(x)


def _refuse(x: Array, fmt: Format, chosen: Options) -> None:
    reference.without_nonfinite(np.atleast_1d(widened(x)), fmt, chosen)  # raises: the message has one home
    raise DataError(f"the array changed while it was read for {fmt}; keep it still")


def _last(x: Array, axis: int) -> Array:
    return np.moveaxis(x, axis, -1) if x.ndim else x.reshape(1)


def _restored(lines: Array, shape: tuple[int, ...], axis: int) -> Array:
    return np.moveaxis(lines, -1, axis) if shape else lines.reshape(())


def _positions(x: Array, axis: int, chosen: Options) -> Array | None:
    return _last(np.arange(x.size).reshape(x.shape), axis) if chosen.rounding == "stochastic" else None


def _chunks(lines: Array) -> Iterator[Any]:
    """Yield indices of the first axis that cut ``lines`` into pieces of whole lines."""
    if lines.ndim < 2 or lines.size <= _CHUNK:
        yield slice(None)
        return
    step = max(1, _CHUNK * lines.shape[0] // lines.size)
    for start in range(0, lines.shape[0], step):
        yield slice(start, start + step)
