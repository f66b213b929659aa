"""From numbers to codes and scales, and to rounded numbers, by plain operations of torch.

Equal to kernels/reference/quantize bit for bit. Numbers are rounded where they lie: a scale that is a power
of two moves the grid to the numbers, not the numbers to the grid, so nothing is divided. Through a real
scale they are divided, and multiplied by it, in float64.
"""

from __future__ import annotations

from functools import partial
from math import prod

import torch

from fewbits.formats import Format
from fewbits.kernels.bits.layout import layout as layout_of_parts
from fewbits.kernels.bits.options import Options
from fewbits.kernels.portable.dequantize.dequantize import rounded_to
from fewbits.kernels.portable.quantize.pairs import fake_quantize_pairs, lies_in_pairs
from fewbits.kernels.portable.values.blocks import Cut, cut
from fewbits.kernels.portable.values.elements import (
    Numbers,
    code_dtype,
    decode,
    encode_gridded,
    encode_other,
    round_gridded,
)
from fewbits.kernels.portable.values.floats import (
    DOUBLE,
    Layout,
    bits_of,
    layout_of,
    of_bits,
    power_of_two,
    single,
)
from fewbits.kernels.portable.values.packing import pack
from fewbits.kernels.portable.values.pieces import in_block_loop, in_memory, in_pieces
from fewbits.kernels.portable.values.scales import Scales, multiplier, scale_codes, scales_of, wide
from fewbits.kernels.portable.values.stochastic import draws

Tensor = torch.Tensor


def fake_quantize(x: Tensor, format: Format, axis: int, chosen: Options, amax: float | None) -> Tensor:
    """Return ``x`` rounded to ``format``, in its dtype and shape on its device, in C order.

    Where ``chosen.nonfinite`` is ``raise``, the caller looks for NaN and infinity: :func:`is_finite`.
    """
    if not x.numel():
        return torch.empty(x.shape, dtype=x.dtype, device=x.device)
    where, layout = cut(format, tuple(x.shape), axis), layout_of(x.dtype)
    halves = _walks_in_halves(x, format)
    if halves and lies_in_pairs(x, where, chosen):
        gridded = partial(_gridded, format=format, chosen=chosen, drawn=None, layout=layout)
        y = fake_quantize_pairs(_finite_reals(x, chosen), format, where, chosen, amax, gridded)
        return y.reshape(x.shape)
    if where.sub == 2 and halves:
        # Neighbours are read from float32 in memory, and passed on from there: one by one halves are slow.
        y = fake_quantize(in_memory(_finite_reals(x, chosen)), format, axis, chosen, amax)
        return in_memory(y).to(x.dtype)
    if where.sub == 2 and torch.compiler.is_compiling():
        where = where._replace(
            sub=where.size
        )  # each value finds the shift of its pair: loops of two are slow
    if halves:
        reals = where.blocks(_finite_reals(x, chosen))
        bits = reals.view(layout.integer)
    else:
        bits, reals = where.blocks(_finite_bits(x, chosen)), None
    scales = scales_of(bits, layout, format, chosen, amax, where, rounds_only=True, reals=reals)

    def rounded(bits: Tensor, drawn: Tensor | None, *parts: Tensor | None) -> Tensor:
        return _rounded(bits, Scales(*parts), format, chosen, drawn, layout, x.dtype)

    def rounded_halves(bits: Tensor, drawn: Tensor | None, *parts: Tensor | None) -> Tensor:
        of_blocks = Scales(*parts)
        held = in_block_loop(bits.view(layout.real), of_blocks.exponent).view(layout.integer)
        y = _rounded(held, of_blocks, format, chosen, drawn, layout, layout.real)
        return in_block_loop(y, of_blocks.exponent).to(x.dtype)

    drawn = _drawn(x, where, chosen)
    y = in_pieces(rounded_halves if halves else rounded, bits, (drawn, *scales), x.dtype)
    return where.values(y).reshape(x.shape).contiguous()


def _walks_in_halves(x: Tensor, format: Format) -> bool:
    """Return whether a graph of the CPU is to keep float32 on the way: why, says ``values/pieces.py``."""
    scales = format.groups.scales
    gridded = scales is not None and scales.power_of_two and format.element.grid is not None
    return gridded and torch.compiler.is_compiling() and x.is_cpu and x.element_size() == 2


def is_finite(x: Tensor) -> Tensor:
    """Return one boolean: whether ``x`` holds neither NaN nor infinity."""
    layout = layout_of(x.dtype)
    return ((bits_of(x) & layout.magnitude) < layout.infinity).all()


def _rounded(
    bits: Tensor,
    scales: Scales,
    format: Format,
    chosen: Options,
    drawn: Tensor | None,
    layout: Layout,
    dtype: torch.dtype,
) -> Tensor:
    """Return the values of blocks, rounded."""
    scaling = format.groups.scales
    if format.element.grid is not None and (scaling is None or scaling.power_of_two):
        y = of_bits(_gridded(bits, scales, format, chosen, drawn, layout), dtype)
        # Last, and of real numbers: Inductor then keeps the loops over blocks to the end. Zeros stay.
        return torch.where(bits == 0, 0.0, y) if scales.bad is None else torch.where(scales.bad, torch.nan, y)
    if scaling is not None and format.element.grid is not None:
        quotient, layout = _quotient(bits, scales, layout)
        y = round_gridded(format.element, Numbers(quotient, _unit(bits, scales), layout, 0), chosen, drawn)
        values = wide(y, layout)
    else:
        values = decode(format.element, _codes(bits, scales, format, chosen, drawn, layout))
    if scaling is not None:
        codes = scale_codes(scales, scaling)
        values = values * multiplier(scaling, codes, scales.shifts, scales.outer)
    return rounded_to(values, dtype)


def _gridded(
    bits: Tensor, scales: Scales, format: Format, chosen: Options, drawn: Tensor | None, layout: Layout
) -> Tensor:
    """Return the bits of values on a grid that a power of two moves."""
    least = 0 if scales.exponent is None else _least_unit(format)
    return round_gridded(format.element, Numbers(bits, _unit(bits, scales), layout, least), chosen, drawn)


def _codes(
    bits: Tensor, scales: Scales, format: Format, chosen: Options, drawn: Tensor | None, layout: Layout
) -> Tensor:
    """Return the codes of blocks."""
    element, scaling = format.element, format.groups.scales
    given, of_given = bits, layout
    if scaling is not None and not scaling.power_of_two:
        bits, layout = _quotient(bits, scales, layout)
    if element.grid is not None:
        least = _least_unit(format) if scales.exponent is not None else 0
        return encode_gridded(element, Numbers(bits, _unit(bits, scales), layout, least), chosen, drawn)
    numbers = wide(bits, layout)
    if scales.exponent is not None:
        numbers = _divided(numbers, _unit(bits, scales))
    if element.reals_only:  # of a number the quotient is one, if beyond the largest float64
        finite = (given & of_given.magnitude) < of_given.infinity
        most = torch.finfo(torch.float64).max
        numbers = torch.where(finite, numbers.clamp(-most, most), numbers)
    return encode_other(element, numbers, chosen, drawn)


def _unit(bits: Tensor, scales: Scales) -> Tensor:
    """Return the power of two that each sub-block is measured in, as exponents."""
    if scales.exponent is None:
        return torch.zeros((), dtype=torch.int32, device=bits.device)
    return scales.exponent if scales.shifts is None else scales.exponent - scales.shifts


def _least_unit(format: Format) -> int:
    assert format.groups.scales is not None
    return format.groups.scales.element.emin - format.largest_shift


def _quotient(bits: Tensor, scales: Scales, layout: Layout) -> tuple[Tensor, Layout]:
    """Return the bits of numbers divided by real scales, rounded as a division in their dtype.

    With a threshold they are 1, 0 or -1.
    """
    assert scales.divisor is not None
    if scales.threshold is not None:
        x = wide(bits, layout)
        return torch.where(x.abs() > scales.threshold, x.sign(), 0.0).view(torch.int64), DOUBLE
    if layout is DOUBLE:
        return (bits.view(torch.float64) / scales.divisor).view(torch.int64), layout
    return single(wide(bits, layout) / scales.divisor), layout


def _divided(x: Tensor, exponent: Tensor) -> Tensor:
    """Return float64 ``x`` / 2^exponent; what is lost below the smallest keeps its sign."""
    value = x * power_of_two(-exponent)
    least = torch.where(x < 0, -(2.0**-1074), 2.0**-1074).double()
    value = torch.where((value == 0) & (x != 0), least, value)
    return torch.where(value.isfinite(), value, x)


def _finite_reals(x: Tensor, chosen: Options) -> Tensor:
    """Return the numbers of :func:`_finite_bits` by comparisons and selections, which keep subnormals."""
    y, most = x.detach().resolve_neg().float(), torch.finfo(x.dtype).max
    if chosen.nonfinite != "saturate":
        return y
    return torch.where(y.abs() <= most, y, torch.where(y > 0, most, torch.where(y < 0, -most, 0.0)))


def _finite_bits(x: Tensor, chosen: Options) -> Tensor:
    """Return the bits of ``x``; an infinity counts as the largest of x's own dtype where it saturates."""
    bits, layout = bits_of(x), layout_of(x.dtype)
    if chosen.nonfinite != "saturate":
        return bits
    magnitude = bits & layout.magnitude
    most = int(bits_of(torch.tensor(torch.finfo(x.dtype).max, dtype=x.dtype, device="cpu")))
    return torch.where(magnitude > layout.infinity, 0, magnitude.clamp(max=most) | bits & layout.sign)


def _drawn(x: Tensor, where: Cut, chosen: Options) -> Tensor | None:
    """Return a draw for each value by its place in ``x``, in blocks."""
    if chosen.rounding != "stochastic":
        return None
    return where.blocks(draws(x.numel(), chosen.seed, chosen.random_bits, x.device))


def quantize(x: Tensor, format: Format, axis: int, chosen: Options, amax: float | None) -> list[Tensor]:
    """Return the packed parts of ``x`` that the format has: codes, scales, shifts, outer scales.

    Where ``chosen.nonfinite`` is ``raise``, the caller looks for NaN and infinity: :func:`is_finite`.
    """
    axis = axis % x.ndim if x.ndim else 0
    shapes = [shape for shape in layout_of_parts(format, tuple(x.shape), axis) if shape is not None]
    if not x.numel():  # a scale that a line or the tensor has all the same is that of zeros
        parts = quantize(torch.zeros(1, dtype=x.dtype, device=x.device), format, 0, chosen, amax)
        return [
            part.expand(shape).clone() if prod(shape) else part.new_empty(shape)
            for part, shape in zip(parts, shapes, strict=True)
        ]
    where, layout = cut(format, tuple(x.shape), axis), layout_of(x.dtype)
    bits = where.blocks(_finite_bits(x, chosen))
    scales = scales_of(bits, layout, format, chosen, amax, where)

    def encoded(bits: Tensor, drawn: Tensor | None, *parts: Tensor | None) -> Tensor:
        codes = _codes(bits, Scales(*parts), format, chosen, drawn, layout)
        return codes if parts[0] is None else torch.where(parts[0], 0, codes)

    drawn = _drawn(x, where, chosen)
    codes = in_pieces(encoded, bits, (drawn, *scales), code_dtype(format.element.bits))
    parts = [pack(where.values(codes).transpose(1, 2), format.groups.codes.bits)]
    parts += _packed_scales(scales, where, format)
    # Contiguous, as `out=` of another call wants them.
    return [part.reshape(shape).contiguous() for part, shape in zip(parts, shapes, strict=True)]


def _packed_scales(scales: Scales, where: Cut, format: Format) -> list[Tensor]:
    _, scaling, shifting, outer = format.groups
    parts = []
    if scaling is not None:
        codes = where.shared(scale_codes(scales, scaling), scaling.size)
        parts.append(pack(codes.transpose(1, 2), scaling.bits))
    if shifting is not None and scales.shifts is not None:
        parts.append(pack(where.shared(scales.shifts, shifting.size).transpose(1, 2), shifting.bits))
    if outer is not None and scales.outer is not None:
        parts.append(where.shared(single(scales.outer), outer.size).transpose(1, 2).view(torch.float32))
    return parts
