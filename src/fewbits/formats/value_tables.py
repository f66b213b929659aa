"""The value of each code of an element: the reference decoding for all other code.

>>> from fewbits.formats import parse
>>> values(parse("mxfp4").element).tolist()  # MXFP4's: those of E2M1, each times the scale of its block
[0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0, -0.0, -0.5, -1.0, -1.5, -2.0, -3.0, -4.0, -6.0]
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fewbits.errors import ArgumentError, DTypeError, FormatError
from fewbits.formats.elements import Exponent, Fixed, Float, Lookup, Posit
from fewbits.formats.format import Element, Format

Codes = NDArray[np.integer]
Reals = NDArray[np.float64]


def decode(element: Element, codes: Codes) -> Reals:
    """Return the exact value of each code.

    Args:
        element: an element format.
        codes: unsigned integers of any shape, below 2^bits.

    Returns:
        float64 of the same shape; NaN and infinities where the format codes them.

    Raises:
        FormatError: ``element`` is not an element format.
        DTypeError: the codes are not integers.
        ArgumentError: a code is negative, or has more bits than the format.
    """
    _check_element(element)
    given = np.asarray(codes)
    _check_codes(element, given)
    c = given.astype(np.int64)
    match element:
        case Float():
            return _decode_float(element, c)
        case Fixed():
            return _decode_fixed(element, c)
        case Exponent():
            return np.where(c == element.nan_code, np.nan, np.ldexp(1.0, c - element.bias))
        case Posit():
            return posit_values(element.bits, element.es)[c]
        case Lookup():
            return _lookup_values(element)[c]
    raise NotImplementedError(f"{type(element).__name__} has no decoding here")


def _check_element(element: object) -> None:
    if isinstance(element, Element):
        return
    if isinstance(element, Format):
        raise FormatError(f"{element} has scales, and its codes no values of their own; take its .element")
    raise FormatError(
        f"element={element!r:.60} is {type(element).__name__}; expected an element format, as "
        "fewbits.formats.parse returns"
    )


def _check_codes(element: Element, codes: NDArray[Any]) -> None:
    if codes.dtype.kind not in "iu":
        raise DTypeError(f"codes of {codes.dtype}; expected integers: take the codes that .parts() returns")
    if not codes.size:
        return
    for code in (int(codes.max()), int(codes.min()) if codes.dtype.kind == "i" else 0):
        if code >> element.bits:  # of a negative integer -1 is left
            raise ArgumentError(
                f"code {code} of {element}, whose width in bits is {element.bits}; expected 0 to "
                f"{2**element.bits - 1}"
            )


def _decode_float(f: Float, c: NDArray[np.int64]) -> Reals:
    sign = np.where(c >> (f.bits - 1), -1.0, 1.0)
    exponent = (c >> f.mantissa_bits) & (2**f.exponent_bits - 1)
    fraction = c & (2**f.mantissa_bits - 1)
    significand = fraction + np.where(exponent > 0, 2**f.mantissa_bits, 0)
    value: Reals = sign * np.ldexp(
        significand.astype(np.float64), np.maximum(exponent, 1) - f.bias - f.mantissa_bits
    )
    top = exponent == 2**f.exponent_bits - 1
    if f.special == "ieee":
        return np.where(top, np.where(fraction == 0, sign * np.inf, np.nan), value)
    if f.special == "fn":
        return np.where(top & (fraction == 2**f.mantissa_bits - 1), np.nan, value)
    if f.special == "fnuz":
        return np.where(c == f.nan_code, np.nan, value)
    return value


def _decode_fixed(f: Fixed, c: NDArray[np.int64]) -> Reals:
    if f.coding == "unsigned":
        n: Reals = c.astype(np.float64)
    elif f.coding == "sign_magnitude":
        high = 2 ** (f.bits - 1)
        n = np.where(c & high, -1.0, 1.0) * (c & (high - 1))
    else:
        n = np.where(c >> (f.bits - 1), c - 2**f.bits, c).astype(np.float64)
    return n * 2.0**-f.frac


def _posit_value(code: int, bits: int, es: int) -> float:
    """Return the value of one posit code (Standard for Posit Arithmetic, 2022, section 3.4)."""
    if code == 0:
        return 0.0
    if code == 1 << (bits - 1):
        return float("nan")
    if code >> (bits - 1):
        return -_posit_value((1 << bits) - code, bits, es)
    body = format(code, f"0{bits - 1}b")
    run = len(body) - len(body.lstrip(body[0]))
    regime = run - 1 if body[0] == "1" else -run
    rest = body[run + 1 :]
    exponent = int(rest[:es].ljust(es, "0") or "0", 2)
    fraction = rest[es:]
    significand = 1.0 + (int(fraction, 2) / 2 ** len(fraction) if fraction else 0.0)
    return float(significand * 2.0 ** (regime * 2**es + exponent))


@lru_cache(maxsize=64)
def posit_values(bits: int, es: int) -> Reals:
    """Return the value of every posit of ``bits`` bits in code order, float64, read-only."""
    return _read_only(np.array([_posit_value(code, bits, es) for code in range(2**bits)]))


@lru_cache(maxsize=64)
def _lookup_values(element: Lookup) -> Reals:
    spare = 2**element.bits - len(element.values)
    return _read_only(np.array([*element.values, *[np.nan] * spare]))


@lru_cache(maxsize=64)
def values(element: Element) -> Reals:
    """Return the value of every code in code order, shape ``(2**bits,)``, float64, read-only.

    Codes of a lookup format without a value give NaN.

    Raises:
        FormatError: the format is not an element, or has more than 2^16 codes.
    """
    _check_element(element)
    if element.bits > 16:
        raise FormatError(f"{element} has 2^{element.bits} codes; a table of values stops at 16 bits")
    return _read_only(decode(element, np.arange(2**element.bits)))


def _read_only(table: Reals) -> Reals:
    table.setflags(write=False)
    return table
