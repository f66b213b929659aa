"""Rounding of magnitudes to a grid, by integers: kernels/reference/values/rounding.py on bit patterns."""

from __future__ import annotations

from typing import NamedTuple

import torch

from fewbits.kernels.bits.options import Options
from fewbits.kernels.portable.values.floats import Layout, exponent_of, nearest_even
from fewbits.kernels.portable.values.stochastic import dropped_bits_go_up

Tensor = torch.Tensor


class Rounded(NamedTuple):
    """Magnitudes on a grid: ``counts`` x 2^(binade - bias - mantissa bits).

    A subnormal may lie on a finer grid than its dtype has: its ``shift`` is negative, and the count lacks as
    many zeros at its end.
    """

    counts: Tensor
    shift: Tensor  # bits by which significands were rounded
    binade: Tensor  # with the bias of the layout
    bits: Tensor  # the magnitude in the layout; beyond its largest, infinity or more


def round_to_grid(
    magnitude: Tensor,
    negative: Tensor,
    lowest: Tensor,
    mantissa_bits: int,
    layout: Layout,
    chosen: Options,
    drawn: Tensor | None,
    *,
    least: int,
) -> Rounded:
    """Round magnitudes to multiples of 2^(max(their exponent, lowest) - mantissa_bits).

    Args:
        magnitude: bits without the sign.
        negative: which numbers are below zero.
        lowest: exponent of the lowest binade with a step of its own, with the bias of the layout.
        mantissa_bits: behind the leading one, no more than the layout has.
        layout: of the magnitudes.
        chosen: how to round.
        drawn: draws for stochastic rounding, of the magnitudes' shape.
        least: no ``lowest`` is below; subnormals have binades of their own from 0 down to it.
    """
    f = layout.fraction
    field = magnitude >> f
    binade = torch.maximum(exponent_of(magnitude, layout, least), lowest)
    field = field.clamp(min=1)
    below = field - 1 << f  # bits of the binade's lower neighbour: added to a significand they are a number
    significand = magnitude - below
    exact_shift = binade - field + (f - mantissa_bits)
    shift = exact_shift.clamp(min=0)
    count = _dropped(significand, shift, negative, layout, chosen, drawn)
    number = below + (count << shift.clamp(max=f + 1))
    if not chosen.rounding.startswith("nearest"):  # one step, however far below it the value lies
        number = torch.where(shift > f + 1, _step(lowest - mantissa_bits, layout), number)
    # Cleared by a mask of bits: a boolean that Inductor keeps on the way costs more than all the rest.
    return Rounded(count, exact_shift, binade, number & (-count >> 8 * count.element_size() - 1))


def _step(exponent: Tensor, layout: Layout) -> Tensor:
    """Return the bits of 2^exponent, which has the bias of the layout."""
    f, exponent = layout.fraction, exponent.to(layout.integer)
    return torch.where(exponent > 0, exponent << f, 1 << (exponent + (f - 1)).clamp(0, f))


def _dropped(
    significand: Tensor,
    shift: Tensor,
    negative: Tensor,
    layout: Layout,
    chosen: Options,
    drawn: Tensor | None,
) -> Tensor:
    """Return ``significand`` / 2^shift rounded to an integer."""
    short = shift.clamp(max=layout.fraction + 6)  # from fraction + 2 on all that matters is below a half
    if chosen.rounding == "nearest_even":
        return nearest_even(significand, short)
    if chosen.rounding == "nearest_away":
        return (significand << 1) + (1 << short) >> short + 1
    kept = significand >> short
    if chosen.rounding == "toward_zero":
        return kept
    dropped = significand - (kept << short)
    if chosen.rounding == "stochastic":
        assert drawn is not None
        return kept + dropped_bits_go_up(dropped, shift, drawn, chosen.random_bits).to(kept.dtype)
    away = negative if chosen.rounding == "down" else ~negative
    return kept + ((dropped > 0) & away).to(kept.dtype)


def away_from_zero_on_overflow(negative: Tensor, rounding: str) -> Tensor:
    """Return where a value above the largest becomes infinity (IEEE 754-2019, section 7.4)."""
    if rounding == "toward_zero":
        return torch.zeros_like(negative)
    if rounding in ("up", "down"):
        return negative if rounding == "down" else ~negative
    return torch.ones_like(negative)
