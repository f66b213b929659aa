"""Products of packed ternary or binary weights with vectors that are rounded to integers of few bits."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fewbits.errors import ArgumentError
from fewbits.formats import Block, Fixed, Format, Lookup
from fewbits.graphs import constant_in_graphs
from fewbits.kernels import native
from fewbits.kernels.arrays.conversions import dequantize, quantize
from fewbits.kernels.arrays.threads import threads
from fewbits.kernels.bits.layout import Packed
from fewbits.kernels.bits.memory import empty_aligned
from fewbits.kernels.bits.options import options, read_format
from fewbits.kernels.native import exact_arithmetic

Array = NDArray[Any]

_BINARY = Lookup((1.0, -1.0))
_FP32 = read_format("fp32")


@constant_in_graphs
def weight_bits(format: Format) -> int:
    """Return the bits of a weight that :func:`product` takes, 2 or 1; 0 where it does not take the format.

    Two bits are integers in two's complement, one bit is 1 or -1; with one float32 scale for a line or for
    the whole matrix, or without scales.
    """
    return _weight_bits(format)


@lru_cache(maxsize=256)
def _weight_bits(format: Format) -> int:
    element, (_, scales, shifts, outer) = format.element, format.groups
    plain = shifts is None and outer is None
    if not plain or (scales is not None and (scales.element != _FP32 or not isinstance(scales.size, str))):
        return 0
    if element == _BINARY:
        return 1
    if not isinstance(element, Fixed) or element.frac or element.bits != 2:
        return 0
    return 0 if element.coding in ("unsigned", "sign_magnitude") else 2


@constant_in_graphs
def activation_bits(format: Format) -> tuple[int, bool] | None:
    """Return the bits of the integers that vectors are rounded to, and whether they are signed.

    They have one float32 scale for each vector. Values 1 and -1 are integers of two bits. None where the
    format is no such one.
    """
    return _activation_bits(format)


@lru_cache(maxsize=256)
def _activation_bits(format: Format) -> tuple[int, bool] | None:
    if not isinstance(format, Block) or format.size != "channel" or format.scale != _FP32 or format.outer:
        return None
    element = format.element
    if element == _BINARY:
        return 2, True
    if not isinstance(element, Fixed) or element.frac or element.bits > 8:
        return None
    return None if element.coding == "sign_magnitude" else (element.bits, element.coding != "unsigned")


def check(format: Format, activation: Format) -> tuple[int, tuple[int, bool]]:
    """Return the bits of a weight, and those of integers and whether they are signed.

    Raises:
        ArgumentError: a format is not taken.
    """
    wide, kind = weight_bits(format), activation_bits(activation)
    if not wide or kind is None:
        raise ArgumentError(
            f"{format} weights with {activation} vectors; expected ternary or binary weights with float32"
            " scales per channel or tensor, and integers of 1 to 8 bits with a float32 scale per channel"
        )
    return wide, kind


@exact_arithmetic()
def plane_product(
    x: Array, q: Packed, format: Format, lines: int, activation: Format, *, out: Array | None = None
) -> Array:
    """Return ``r @ W.T``, r being ``x`` rounded to ``activation``.

    It is :func:`fewbits.kernels.reference.gemv.planes.product`, the definition, bit for bit.

    Args:
        x: (batch, n) float32.
        q: the parts of W, (lines, n), with its blocks along n.
        format: of W; :func:`weight_bits` takes it.
        lines: of W.
        activation: :func:`activation_bits` takes it. 1 and -1 take the scale rule ``absmean``.
        out: (batch, lines) float32 in C order, overwritten with the result.

    Raises:
        ArgumentError: a format is not taken.
    """
    wide, (bits, is_signed) = check(format, activation)
    y = empty_aligned((len(x), lines), np.float32) if out is None else out
    if not x.size or not lines:
        y[...] = 0
        return y
    rule = "absmean" if activation.element == _BINARY else "floor"
    rounded = quantize(np.ascontiguousarray(x), activation, 1, options(activation, scale_rule=rule))
    assert rounded.scales is not None
    native.plane_product(
        *(q.codes, wide, _integers(rounded, activation, x.shape), bits, is_signed),
        None if q.scales is None else np.ascontiguousarray(q.scales).view(np.float32).reshape(-1),
        rounded.scales.view(np.float32).reshape(-1),
        y,
        threads=threads(),
    )
    return y


def _integers(rounded: Packed, activation: Format, shape: tuple[int, ...]) -> NDArray[np.uint8]:
    """Return the codes of vectors as integers, a byte for each."""
    if activation.element.bits == 8:
        return rounded.codes
    values = dequantize(Packed(rounded.codes), activation.element, shape, 1, np.float32)
    return values.astype(np.int8).view(np.uint8)
