"""Fast rounding of float64: by the kernels of float32, after a first rounding that loses nothing they see.

Rounding to odd cuts a value to float32 and sets the last bit where something was cut off. What is odd is no
value of a format of 22 significant bits or fewer, and no middle between two, so that the second rounding
gives what one rounding would have given (Boldo and Melquiond, Emulation of a FMA and correctly rounded sums,
IEEE Transactions on Computers 57, 2008, theorem 1).
"""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fewbits.formats import Format, parse
from fewbits.kernels import native, reference
from fewbits.kernels.arrays.threads import threads
from fewbits.kernels.bits.options import Options, options
from fewbits.kernels.bits.scale_rules import MEAN_RULES, SCALE_RULES

Array = NDArray[Any]
Reals = NDArray[np.float64]
Singles = NDArray[np.float32]

_SINGLE = parse("fp32")
_MOST_BITS = 21  # behind the leading one; float32 has 23, and rounding twice needs two more
_LEAST, _MOST = 2.0**-60, 2.0**60  # magnitudes that stay normal float32 whatever they are scaled by here


def odd(x: Reals) -> Singles:
    """Return finite ``x`` rounded to odd; magnitudes above zero are within 2^-60 and 2^60."""
    cut = x.astype(np.float32)
    bits, magnitude = cut.view(np.int32), np.abs(x)
    bits -= np.abs(cut) > magnitude  # rounded away from zero: one step back
    bits |= np.abs(cut) != magnitude
    return cut


def fake_quantize_wide(x: Reals, format: Format, chosen: Options, amax: float | None) -> Reals | None:
    """Return the lines of ``x``, (..., n), rounded to ``format``; None where only the definition can.

    Args:
        x: float64, blocks along the last axis.
        format: any format.
        chosen: from :func:`fewbits.kernels.bits.options.options`.
        amax: the largest magnitude of the whole tensor, if a scale of it is chosen from that.
    """
    element, scales = format.element, format.groups.scales
    is_single = format == _SINGLE and chosen.rounding == "nearest_even"
    if chosen.rounding == "stochastic" or not x.size or not (is_single or _is_coarse(format)):
        return None
    if chosen.scale_rule in MEAN_RULES:
        return None
    magnitude = np.abs(x)
    if not (magnitude.max() <= _MOST and np.where(magnitude > 0, magnitude, _MOST).min() >= _LEAST):
        return None
    if is_single:
        return x.astype(np.float32).astype(np.float64)
    if scales is None or scales.power_of_two:
        if not _sees_step(format, chosen.scale_rule) or not (
            amax is None or amax == 0 or _LEAST <= amax <= _MOST
        ):
            return None
        whole = None if amax is None else float(odd(np.array([amax]))[0])
        return _rounded(odd(x), format, chosen, whole)
    # A quotient by a real scale is one of float64. Beyond the ends of the element it does not matter how far.
    parts, quotient = reference.scaled(x, format, chosen, amax)
    sizes = np.abs(quotient)
    ends = np.where(sizes > 0, np.copysign(np.clip(sizes, _LEAST, _MOST), quotient), quotient)
    of_element = options(element, rounding=chosen.rounding, overflow=chosen.overflow)
    found = _rounded(odd(ends), element, of_element, None)
    empty = replace(parts, codes=np.empty(x.shape, np.uint8))
    return None if found is None else np.multiply(found, reference.multiplier(empty, format))


def _is_coarse(format: Format) -> bool:
    """Return whether no value of an element, and no middle of two, is odd in float32 or leaves its range."""
    element = format.element
    grid = element.grid
    few_bits = element.reals_only if grid is None else grid.mantissa_bits <= _MOST_BITS
    # Elements times scales must not leave the range either; without scales that of the values says enough.
    near = element.finest_step >= 2.0**-40 and element.emax <= 40
    return few_bits and (near or format.groups.scales is None)


@lru_cache(maxsize=256)
def _sees_step(format: Format, rule: str) -> bool:
    """Return whether rounding to odd leaves a value on its side of a rule's step: of ``oas`` not always."""
    step = SCALE_RULES[rule](format.element).step
    return format.groups.scales is None or (step * 2**_MOST_BITS).denominator == 1


def _rounded(x: Singles, format: Format, chosen: Options, amax: float | None) -> Reals | None:
    if not native.supports(format, chosen, x.dtype):
        return None
    lines = x.reshape(-1) if format.groups.scales is None else x  # short lines would take a time each
    out = np.empty(lines.shape, np.float32)  # in C order, whatever that of x is
    native.fake_quantize(lines, out, format, lines.ndim - 1, chosen, amax, threads=threads())
    return out.reshape(x.shape).astype(np.float64)
