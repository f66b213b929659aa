"""Products: a packed matrix with vectors, matrices of bfloat16 values, and without multiplications."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fewbits.formats import Format
from fewbits.formats.pattern import Pattern
from fewbits.kernels import native
from fewbits.kernels.arrays.conversions import dequantize, quantize
from fewbits.kernels.arrays.nm import expand, zeros
from fewbits.kernels.arrays.threads import threads
from fewbits.kernels.arrays.values import smallest
from fewbits.kernels.bits.layout import Packed
from fewbits.kernels.bits.memory import empty_aligned
from fewbits.kernels.bits.options import Options, options
from fewbits.kernels.native import exact_arithmetic
from fewbits.kernels.reference.gemv.int8 import ACTIVATION

Array = NDArray[Any]

_SMALLEST_NORMAL = 2.0**-126  # of bfloat16 and float32
_OF_SUMS = 2.0**7  # sums of numbers of eight bits are multiples of 2^-7 times the least of them


def is_normal(x: Array) -> bool:
    """Return whether no value or sum of values of ``x``, which are bfloat16, is subnormal.

    Units for bfloat16 take what is subnormal for zero.
    """
    return bool(x.size) and smallest(x) >= _SMALLEST_NORMAL * _OF_SUMS


def max_vectors(format: Format) -> int:
    """Return the largest number of rows of x for which :func:`gemv` is faster than a product with unpacked W.

    Measured with AVX-512 on Zen 5 and with AVX2 on Zen 3, where unpacking to memory costs as much as the
    product of 64 vectors; values of tables on Zen 4.
    """
    isa = native.active_isa()
    if isa == "baseline":
        return 16
    return 512 if isa == "avx2" and format.element.grid is not None else 64


@exact_arithmetic()
def gemv(
    x: Array,
    q: Packed,
    format: Format,
    lines: int,
    sparsity: Pattern | None = None,
    *,
    bfloat16: bool = False,
    out: Array | None = None,
) -> Array:
    """Return ``x @ W.T`` for a packed W of shape (lines, n) with its blocks along n.

    Meant for few rows of ``x``, (batch, n) float32: W is decoded once for all of them, in registers or
    the nearest cache, never to memory. Sums are float32; with u = 2^-24, the error is at most (n + 2) u sum
    |x| |W|. With ``sparsity`` the codes of W are streams; the result equals that of the dense W bit for bit.
    ``bfloat16`` says that every value of x is a bfloat16 of at least 2^-119, or zero. ``out``, if given, is
    (batch, lines) float32 in C order and is overwritten with the result, as in the other products.
    """
    y = empty_aligned((x.shape[0], lines), np.float32) if out is None else out
    if x.size and lines and native.supports_product(format):
        zero = 0 if sparsity is None else zeros(format)[0]
        whole = np.ascontiguousarray(x)
        native.gemv(whole, q, y, format, sparsity, zero, bfloat16=bfloat16, threads=threads())
        return y
    if sparsity is not None:
        q = q._replace(codes=expand(q.codes, format, x.shape[1], sparsity))
    return np.matmul(x, dequantize(q, format, (lines, x.shape[1]), 1, np.float32).T, out=y)


@exact_arithmetic()
def gemv_int8(
    x: Array,
    q: Packed,
    format: Format,
    lines: int,
    sparsity: Pattern | None = None,
    *,
    out: Array | None = None,
) -> Array:
    """Return ``r @ W.T``, r being ``x`` rounded to int8 with a float32 scale for each 32 values of a row.

    With W of four or eight bits whose elements are integers times a power of two, whose scales serve 32
    values or more and which is not a stream, :func:`fewbits.kernels.reference.gemv.int8.product` is the
    definition, bit for bit. With any other W it is the product of :func:`gemv` with r.
    """
    y = empty_aligned((x.shape[0], lines), np.float32) if out is None else out
    whole = np.ascontiguousarray(x)
    if not (x.size and lines and native.supports_product(format)):
        rounded = quantize(whole, ACTIVATION, 1, options(ACTIVATION))
        return gemv(
            dequantize(rounded, ACTIVATION, x.shape, 1, np.float32), q, format, lines, sparsity, out=y
        )
    zero = 0 if sparsity is None else zeros(format)[0]
    native.gemv(
        *(whole, q, y, format, sparsity, zero), bfloat16=False, threads=threads(), activation=ACTIVATION
    )
    return y


def has_bfloat16_products() -> bool:
    """Return whether :func:`bfloat16_product` multiplies by this CPU's own bfloat16 units."""
    return native.has_bfloat16_products()


def has_tiles() -> bool:
    """Return whether :func:`bfloat16_product` multiplies by tiles (AMX), at several times float32's rate."""
    return native.has_tiles()


def bfloat16_product(a: Array, b: Array, out: Array | None = None) -> Array:
    """Return ``a @ b``, summed in float32, for float32 matrices of normal bfloat16 values and zeros.

    Other values are multiplied as they are, by float32, and so is everything where
    :func:`has_bfloat16_products` is false.
    """
    y = empty_aligned((a.shape[0], b.shape[1]), np.float32) if out is None else out
    factors = native.side_by_side(a[None]), native.side_by_side(b[None]), y[None]
    if not (has_bfloat16_products() and native.product(*factors, "bfloat16", threads=threads())):
        native.product(*factors, "float32", threads=threads())
    return y


def subtract_bfloat16_product(a: Array, b: Array, out: Array, terms: int = 1) -> None:
    """Subtract from ``out`` the product of ``a`` and ``b``, rounded to bfloat16 on the way, by its units.

    Subnormal values and products count as zeros. :func:`has_bfloat16_products` has to be true.

    Args:
        terms: bfloat16 numbers whose sum stands for a value. Two, of float32 and with :func:`has_tiles`,
            leave out the product of the second ones.
        a: (m, k), float32, or uint16 that are the bits of bfloat16.
        b: (k, n), likewise.
        out: (m, n), float32, the values of each row side by side.
    """
    factors = native.side_by_side(a[None]), native.side_by_side(b[None]), out[None]
    unit = "bfloat16x2" if terms == 2 else "bfloat16"
    native.product(*factors, unit, threads=threads(), subtracts=True)


def rounds_in_product(format: Format, chosen: Options) -> bool:
    """Return whether :func:`rounded_product` rounds to ``format`` with these options."""
    return native.rounds_in_product(format, chosen)


@exact_arithmetic()
def rounded_product(
    a: Array,
    b: Array,
    formats: tuple[Format | None, Format | None],
    chosen: tuple[Options | None, Options | None],
    out: Array,
    lower: str = "",
) -> Array:
    """Write ``a @ b`` into ``out``, and return it.

    Where both formats are small integers times a power of two for each block, and the CPU multiplies bytes,
    or pairs of 16 bits, faster than float32, the result is that of
    :func:`fewbits.kernels.reference.gemm.product.product`, bit for bit. Else sums are float32, from one value
    to the next or from a pair to the next, within (k + 2) u |a| |b|.

    Args:
        a: (batch, m, k), float32, or uint16 that are the bits of bfloat16.
        b: (batch, k, n), likewise.
        formats: of the values of a and b, with their blocks along k; None for any numbers.
        chosen: how a and b are rounded to their formats first; None where they have been.
        out: (batch, m, n), float32 or uint16 as above, in C order.
        lower: which matrix is lower triangular, as :func:`fewbits.kernels.native.product` takes it.
    """
    left, right = native.side_by_side(a), native.side_by_side(b)
    roundings = [
        None if options is None or format is None else (format, options)
        for format, options in zip(formats, chosen, strict=True)
    ]
    narrow = all(
        x.dtype == np.uint16 or _is_bfloat16(format) for x, format in zip((a, b), formats, strict=True)
    )
    blocks = {"integers": _common_block(*formats, 7), "bfloat16": 32 if narrow else 0}
    blocks |= {"integers16": _common_block(*formats, 9), "float32": 32}
    for unit, block in blocks.items():
        if (block and native.has_unit(unit)) and native.product(
            *(left, right, out, unit),
            block=block,
            of_a=roundings[0],
            of_b=roundings[1],
            threads=threads(),
            lower=lower,
        ):
            break
    return out


@lru_cache(maxsize=256)
def _common_block(a: Format | None, b: Format | None, bits: int) -> int:
    """Return 32 or 16, the values that share a scale in both formats; 0 where one has larger integers."""
    sizes = [_block_of_integers(format, bits) for format in (a, b)]
    return next((size for size in (32, 16) if all(each and each % size == 0 for each in sizes)), 0)


def _block_of_integers(format: Format | None, bits: int) -> int:
    """Return the block size of a format of integers of ``bits`` and a sign times powers of two, else 0."""
    scales = None if format is None else format.groups.scales
    if format is None or scales is None or not (scales.power_of_two and isinstance(scales.size, int)):
        return 0
    element = format.element
    largest = max(element.max, -element.min) / element.finest_step * 2**format.largest_shift
    return scales.size if element.grid is not None and largest < 2**bits else 0


def _is_bfloat16(format: Format | None) -> bool:
    """Return whether the values of a format fit bfloat16, but for its range."""
    if format is None or format.element.grid is None:
        return False
    scales = format.groups.scales
    return scales is not None and scales.power_of_two and format.element.grid.mantissa_bits <= 7


def addition_product(a: Array, b: Array, out: Array | None = None) -> Array:
    """Return ``a @ b`` of float32 matrices, each product one integer sum of bit patterns.

    Equal to :func:`fewbits.kernels.reference.gemm.additions.product`, which is the definition, bit for bit.
    """
    y = empty_aligned((a.shape[0], b.shape[1]), np.float32) if out is None else out
    native.addition_product(np.ascontiguousarray(a), np.ascontiguousarray(b), y, threads=threads())
    return y
