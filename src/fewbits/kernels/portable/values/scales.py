"""The scale of each block, by integers: kernels/reference/values/scales.py on bit patterns."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch

from fewbits.formats import Element, Format, Group
from fewbits.kernels.bits.options import Options
from fewbits.kernels.bits.scale_rules import MEAN_RULES, SCALE_RULES, TWN_THRESHOLD, refuse_amax
from fewbits.kernels.portable.values.blocks import BLOCK, CHANNEL, EVERYTHING, SUB_BLOCK, Cut
from fewbits.kernels.portable.values.elements import Numbers, decode, encode_gridded
from fewbits.kernels.portable.values.floats import (
    DOUBLE,
    SINGLE,
    Layout,
    bits_of,
    exponent_of,
    fraction_of,
    power_of_two,
    single,
    widened,
)
from fewbits.kernels.reference.values.encode import encode

Tensor = torch.Tensor
_MOST = float(np.finfo(np.float32).max)
_LEAST = 2.0**-149


class Scales(NamedTuple):
    """The scales of all blocks, each of the five axes of :mod:`fewbits.kernels.portable.values.blocks`."""

    bad: Tensor | None = None  # which blocks are NaN, through their scale
    exponent: Tensor | None = None  # of power-of-two scales, int32
    shifts: Tensor | None = None  # int32, per sub-block
    codes: Tensor | None = None  # of real scales
    divisor: Tensor | None = None  # of real scales, float64 that float32 holds
    outer: Tensor | None = None  # float64 that float32 holds
    threshold: Tensor | None = None  # float64: beyond it values are 1 or -1, else 0


def scales_of(
    bits: Tensor,
    layout: Layout,
    format: Format,
    options: Options,
    amax: float | None,
    where: Cut,
    *,
    rounds_only: bool = False,
    reals: Tensor | None = None,
) -> Scales:
    """Return the scales for blocks of numbers, given by their bits.

    With ``rounds_only`` those of bad blocks are any, as nothing is stored of them. With ``reals``,
    the numbers themselves, the largest is looked for among these.

    Raises:
        ArgumentError: scales are to be means.
    """
    _, scales, shifts, outer = format.groups
    if scales is None:
        return Scales()
    mean = options.scale_rule in MEAN_RULES
    if mean:
        refuse_amax(options.scale_rule, amax)
    magnitude = bits & layout.magnitude
    sizes = magnitude.view(layout.real) if reals is None else reals.abs()
    bad, per_block = None, options.nonfinite == "block_nan"
    if per_block:
        bad = _largest(sizes, BLOCK, layout) >= layout.infinity
    if options.nonfinite == "element" or (per_block and not (rounds_only and outer is None)):
        magnitude = torch.where(magnitude < layout.infinity, magnitude, 0)
        sizes = magnitude.view(layout.real)
    given = None if amax is None else _given(amax, layout, bits.device)
    if shifts is not None and where.sub not in (1, shifts.size):  # where it is 1, each stands for a pair
        sub = torch.maximum(magnitude, _neighbours(magnitude))
    else:
        sub = magnitude.amax(SUB_BLOCK, keepdim=True)
    if _has_least_scale_for_subnormals(format, options, layout):
        largest = _largest(sizes, BLOCK, layout)
    else:
        largest = sub.amax(BLOCK, keepdim=True)
    if given is not None and scales.size == "tensor":
        largest = given.expand_as(largest)
    if scales.power_of_two:
        exponent = _shared_exponent(largest, layout, format.element, scales.element, options)
        return Scales(bad, exponent, None if shifts is None else _shifts(sub, exponent, layout, format))
    if mean:
        wanted, threshold = _mean_scales(bits, layout, options, where.counts(bits.device))
        codes = _encode_scale(wanted, largest, scales.element, options)
        return Scales(bad, None, None, codes, decode(scales.element, codes), None, threshold)
    whole = None
    if outer is not None:
        whole = largest.amax(CHANNEL if outer.size == "channel" else EVERYTHING, keepdim=True)
        whole = given.expand_as(whole) if given is not None and outer.size == "tensor" else whole
    return Scales(bad, None, None, *_real_scales(largest, whole, layout, format, options))


def _given(amax: float, layout: Layout, device: torch.device) -> Tensor:
    """Return the bits of a largest magnitude, rounded to the layout's dtype; beyond it, infinity."""
    if layout is SINGLE:  # torch.full refuses what float32 does not hold
        with np.errstate(over="ignore"):
            amax = float(np.float32(amax))
    return bits_of(torch.full((), amax, dtype=layout.real, device=device))


def _largest(sizes: Tensor, axes: tuple[int, ...], layout: Layout) -> Tensor:
    """Return the bits of the largest of real numbers: Inductor has no fast maximum of integers.

    Where subnormals are flushed, any of them may come out for the largest of nothing but them.
    """
    return sizes.amax(axes, keepdim=True).view(layout.integer) & layout.magnitude


def _neighbours(x: Tensor) -> Tensor:
    """Return for each value of a block the other one of its pair."""
    pairs: Tensor = x.unflatten(3, (-1, 2)).flip(4)
    return pairs.flatten(3, 4)


def _has_least_scale_for_subnormals(format: Format, options: Options, layout: Layout) -> bool:
    """Return whether all blocks of subnormals have the smallest scale, that of zeros too."""
    scales = format.groups.scales
    if scales is None or not scales.power_of_two or options.zero_block != "smallest":
        return False
    rule = SCALE_RULES[options.scale_rule](format.element)
    carry = rule.first(layout.fraction) < 1 << layout.fraction
    return rule.plus - format.element.emax - layout.bias + carry <= scales.element.emin


def _shared_exponent(
    largest: Tensor, layout: Layout, element: Element, scale: Element, options: Options
) -> Tensor:
    f, rule = layout.fraction, SCALE_RULES[options.scale_rule](element)
    carry = (1 << f) - rule.first(f)  # added to a fraction, it reaches the next exponent from the step on
    offset = rule.plus - element.emax - layout.bias
    if offset + (carry > 0) <= scale.emin:  # the exponents of subnormals do not matter
        exponent = (largest + carry >> f) + offset
    else:
        up = fraction_of(largest, layout) + carry >> f
        exponent = exponent_of(largest, layout) + offset + up
    zero = scale.emin if options.zero_block == "smallest" else min(max(0, scale.emin), scale.emax)
    # A block beyond the largest scale keeps that scale and saturates; one below the smallest loses low bits.
    chosen = exponent.clamp(scale.emin, scale.emax).to(torch.int32)
    return chosen if zero == scale.emin else torch.where(largest > 0, chosen, zero)


def _shifts(sub: Tensor, exponent: Tensor, layout: Layout, format: Format) -> Tensor:
    """Return tau = min(E1 - E2, beta) of each sub-block (Shared Microexponents, section 3.2)."""
    assert format.groups.scales is not None
    least = format.groups.scales.element.emin - format.largest_shift + layout.bias
    gap = exponent - (exponent_of(sub, layout, least) - layout.bias)
    return gap.clamp(0, format.largest_shift).to(torch.int32)


def _real_scales(
    largest: Tensor, whole: Tensor | None, layout: Layout, format: Format, options: Options
) -> tuple[Tensor, Tensor, Tensor | None]:
    """Return (scale codes, divisor per block, outer scales)."""
    assert format.groups.scales is not None
    scale = format.groups.scales.element
    top = float(np.float32(format.element.max))
    biggest = _capped(largest, layout)
    if whole is None:
        codes = _encode_scale(_rounded(biggest / top), largest, scale, options)
        return codes, decode(scale, codes), None
    # Transformer Engine's NVFP4: g = 2688 / amax; scale = E4M3(amax_block (g / 6)); x / (scale / g).
    fill = float(np.float32(scale.max * format.element.max))
    gain = _rounded(fill / torch.where(whole > 0, _capped(whole, layout), 1.0)).clamp(max=_MOST)
    gain = torch.where(whole > 0, gain, 1.0)
    wanted = _rounded(biggest * _rounded(gain * float(np.float32(1) / np.float32(top))))
    codes = _encode_scale(wanted, largest, scale, options)
    divisor = _rounded(decode(scale, codes) / gain).clamp(min=_LEAST)
    return codes, divisor, _rounded(1.0 / gain).clamp(max=_MOST)


def _mean_scales(
    bits: Tensor, layout: Layout, options: Options, counts: Tensor
) -> tuple[Tensor, Tensor | None]:
    """Return the scales of a rule of MEAN_RULES, float64 that float32 holds, and the threshold if it has one.

    Sums are of float64 in an order of torch's: the last bit of a scale may differ from the definition's.
    """
    magnitude = wide(bits, layout).abs()
    mean, threshold = magnitude.sum(BLOCK, keepdim=True) / counts, None
    if options.scale_rule == "twn":
        threshold = TWN_THRESHOLD * mean
        beyond = magnitude > threshold
        total = torch.where(beyond, magnitude, 0.0).sum(BLOCK, keepdim=True)
        mean = total / beyond.sum(BLOCK, keepdim=True).clamp(min=1)
    return mean.clamp(max=_MOST).float().double(), threshold


def wide(bits: Tensor, layout: Layout) -> Tensor:
    """Return the float64 of any bits, NaN and infinity included."""
    if layout is DOUBLE:
        return bits.view(torch.float64)
    magnitude = bits & SINGLE.magnitude
    infinite = torch.where(bits < 0, -torch.inf, torch.inf).double()
    beyond = torch.where(magnitude > SINGLE.infinity, torch.nan, infinite)
    return torch.where(magnitude < SINGLE.infinity, widened(bits), beyond)


def _capped(magnitude: Tensor, layout: Layout) -> Tensor:
    """Return magnitudes as float64 that float32 holds, at most its largest."""
    if layout is SINGLE:
        return widened(magnitude.clamp(max=SINGLE.infinity - 1))
    return _rounded(magnitude.view(torch.float64).clamp(max=_MOST))


def _rounded(x: Tensor) -> Tensor:
    """Return float64 rounded to float32; beyond the largest, infinity."""
    bits = single(x)
    return torch.where(bits == SINGLE.infinity, torch.inf, widened(bits))


def _encode_scale(wanted: Tensor, largest: Tensor, scale: Element, options: Options) -> Tensor:
    unit = torch.zeros((), dtype=torch.int32, device=wanted.device)
    to_nearest = Options("nearest_even", "floor", "saturate", "raise", "one")
    codes = encode_gridded(scale, Numbers(wanted.view(torch.int64), unit, DOUBLE, 0), to_nearest, None)
    nearest_one = max(min(1.0, scale.max), scale.smallest_subnormal)  # which is never the scale zero
    ends = np.array([scale.smallest_subnormal, nearest_one])
    smallest, one = encode(scale, ends, "nearest_even", "saturate", None).tolist()
    # A scale that rounds to zero would lose the block; it becomes the smallest nonzero value.
    codes = torch.where((codes == 0) & (largest > 0), smallest, codes)
    return torch.where(largest > 0, codes, smallest if options.zero_block == "smallest" else one)


def scale_codes(scales: Scales, group: Group) -> Tensor:
    """Return the codes of the scales, NaN where blocks are bad."""
    codes = scales.codes
    if scales.exponent is not None:
        codes = scales.exponent - group.element.emin
    assert codes is not None
    if scales.bad is None or group.element.nan_code is None:
        return codes
    return torch.where(scales.bad, group.element.nan_code, codes)


def multiplier(group: Group, codes: Tensor, shifts: Tensor | None, outer: Tensor | None) -> Tensor:
    """Return what each element is multiplied by, float64: the scale, shifted, times the outer scale."""
    total = decode(group.element, codes)
    if shifts is not None:
        total = total * power_of_two(-shifts)
    return total if outer is None else total * outer
