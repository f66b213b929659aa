"""Products of two packed matrices: block-scaled by the chip where it can, else from decoded tiles."""

from __future__ import annotations

from functools import lru_cache
from typing import Any, NamedTuple

import torch
import triton
import triton.language as tl

from fewbits.formats import Element, Exponent, Float, Format
from fewbits.kernels.bits.options import options
from fewbits.kernels.triton.values.bits import clamp, float_of, magnitude_of, split, to_dtype
from fewbits.kernels.triton.values.decode import (
    load_elements,
    load_outer,
    load_scales,
    load_shifts,
    scale_value,
)
from fewbits.kernels.triton.values.spec import Spec, spec

# 64 by 64 sums are 32 registers of each of 128 threads. Nobody has measured larger tiles.
_TILE = 64
_SCALED_TILE = 128  # the rows that one block-scaled instruction of Blackwell takes
_SCALED_DEPTH = 128  # values of k at once, four scales of 32
_DEPTH = 64  # the same of decoded tiles where no scale changes within
_NAMES: dict[Element, str] = {
    Float(2, 1): "e2m1",
    Float(4, 3, 7, "fn"): "e4m3",
    Float(5, 2, 15, "ieee"): "e5m2",
}
_E8M0 = Exponent(8, 127)


class Depth(NamedTuple):
    """How k is walked."""

    span: int  # values at once
    bfloat16: bool  # whether decoded tiles are bfloat16; else float32
    scaled: str  # names of both elements for tl.dot_scaled; empty where tiles are decoded
    scaled_b: str


@triton.jit
def _load_scaled(
    codes: tl.tensor,
    line: tl.tensor,
    start: tl.tensor,
    k: tl.tensor,
    exists: tl.tensor,
    depth: tl.constexpr,
    bits: tl.constexpr,
) -> Any:
    """Return the bytes of elements of 4 or 8 bits, (lines, depth * bits / 8)."""
    octets: tl.constexpr = depth * bits // 8
    place = start * bits // 8 + tl.arange(0, octets)
    line_bytes = (k * bits + 7) // 8
    inside = exists[:, None] & (place < line_bytes)[None, :]
    return tl.load(codes + line[:, None] * line_bytes + place[None, :], mask=inside, other=0)


@triton.jit
def _load_e8m0(
    scales: tl.tensor, line: tl.tensor, start: tl.tensor, k: tl.tensor, exists: tl.tensor, depth: tl.constexpr
) -> Any:
    """Return the bytes of the scales of 32 values each, (lines, depth / 32)."""
    item = start // 32 + tl.arange(0, depth // 32)
    count = (k + 31) // 32
    inside = exists[:, None] & (item < count)[None, :]
    return tl.load(scales + line[:, None] * count + item[None, :], mask=inside, other=0)


@triton.jit
def _decoded(
    codes: tl.tensor,
    shifts: tl.tensor,
    line: tl.tensor,
    start: tl.tensor,
    k: tl.tensor,
    exists: tl.tensor,
    depth: tl.constexpr,
    bfloat16: tl.constexpr,
    f: tl.constexpr,
) -> Any:
    """Return elements without their scale, as bfloat16, which holds them exactly, or float32."""
    i = line[:, None] * 0 + start + tl.arange(0, depth)[None, :]
    inside = exists[:, None] & (i < k)
    exponent = tl.zeros_like(i).to(tl.int32)
    if f.per_shift > 0:
        exponent = -load_shifts(shifts, line[:, None], i, inside, k, f)
    found = load_elements(codes, codes, line[:, None], i, inside, k, exponent, f)
    return to_dtype(found, tl.bfloat16) if bfloat16 else found


@triton.jit
def _scale_of(
    scales: tl.tensor, line: tl.tensor, start: tl.tensor, k: tl.tensor, exists: tl.tensor, f: tl.constexpr
) -> Any:
    """Return (exponent, factor) of the scales of lines at one place of k: 2^exponent * factor.

    The factor of a power of two is 1, or NaN; that of a real scale lies below 2^24.
    """
    whole = load_scales(scales, line, line * 0 + start, exists, k, f)
    if f.scaling == "power":
        exponent = tl.where(whole == f.scale.nan, 0, whole + f.scale.emin)
        factor = tl.where(whole == f.scale.nan, float("nan"), 1.0)
    else:
        of_scale: tl.constexpr = f.scale
        exponent, factor = _apart(scale_value(whole, of_scale))
    return exponent, factor


@triton.jit
def _apart(x: tl.tensor) -> Any:
    """Return (exponent, factor) of float32, 2^exponent * factor; the factor is an integer of 24 bits, or NaN.

    Two numbers multiply so where their product leaves float32 and that with a third need not.
    """
    significand, top = split(magnitude_of(x))
    factor = tl.where(x < 0, -significand, significand).to(tl.float32)
    return tl.where(significand > 0, top - 23, 0), tl.where((x - x) == 0.0, factor, x)


@triton.jit
def _times(x: tl.tensor, exponent: tl.tensor, factor: tl.tensor) -> Any:
    """Return x * 2^exponent * factor where the power alone may leave float32: it is two factors."""
    near = clamp(exponent, -126, 127)
    far = clamp(exponent - near, -126, 127)
    return x * factor * float_of((near + 127) << 23) * float_of((far + 127) << 23)


@triton.jit
def _outer_of(outer: tl.tensor, line: tl.tensor, exists: tl.tensor, f: tl.constexpr) -> Any:
    """Return the outer scales of lines as :func:`_apart` does; those of a format without are 1."""
    if f.scaling == "outer":
        power, part = _apart(load_outer(outer, line, exists, f))
    else:
        power, part = tl.zeros(line.shape, tl.int32), tl.full(line.shape, 1.0, tl.float32)
    return power, part


@triton.jit
def product_kernel(
    a_codes: tl.tensor,
    a_scales: tl.tensor,
    a_shifts: tl.tensor,
    a_outer: tl.tensor,
    b_codes: tl.tensor,
    b_scales: tl.tensor,
    b_shifts: tl.tensor,
    b_outer: tl.tensor,
    y: tl.tensor,
    m: tl.tensor,
    n: tl.tensor,
    k: tl.tensor,
    fa: tl.constexpr,
    fb: tl.constexpr,
    depth: tl.constexpr,
    rows: tl.constexpr,
    columns: tl.constexpr,
) -> None:
    """Store a tile of ``A @ B.T``, both packed along k; the third axis of programs is the batch."""
    batch = tl.program_id(2).to(tl.int64)
    row = tl.program_id(0) * rows + tl.arange(0, rows)
    column = tl.program_id(1) * columns + tl.arange(0, columns)
    line_a, line_b = batch * m + row, batch * n + column
    in_a, in_b = row < m, column < n
    total = tl.zeros([rows, columns], tl.float32)
    name_a: tl.constexpr = depth.scaled
    name_b: tl.constexpr = depth.scaled_b
    for start in range(0, k, depth.span):
        if depth.scaled != "":
            left = _load_scaled(a_codes, line_a, start, k, in_a, depth.span, fa.grid.bits)
            right = _load_scaled(b_codes, line_b, start, k, in_b, depth.span, fb.grid.bits)
            scale_a = _load_e8m0(a_scales, line_a, start, k, in_a, depth.span)
            scale_b = _load_e8m0(b_scales, line_b, start, k, in_b, depth.span)
            total = tl.dot_scaled(left, scale_a, name_a, tl.trans(right), scale_b, name_b, total)
        else:
            left = _decoded(a_codes, a_shifts, line_a, start, k, in_a, depth.span, depth.bfloat16, fa)
            right = _decoded(b_codes, b_shifts, line_b, start, k, in_b, depth.span, depth.bfloat16, fb)
            found = tl.dot(left, tl.trans(right))
            exponent_a, factor_a = _scale_of(a_scales, line_a, start, k, in_a, fa)
            exponent_b, factor_b = _scale_of(b_scales, line_b, start, k, in_b, fb)
            exponent = exponent_a[:, None] + exponent_b[None, :]
            total += _times(found, exponent, factor_a[:, None] * factor_b[None, :])
    if fa.scaling == "outer" or fb.scaling == "outer":
        power_a, part_a = _outer_of(a_outer, line_a, in_a, fa)
        power_b, part_b = _outer_of(b_outer, line_b, in_b, fb)
        total = _times(total, power_a[:, None] + power_b[None, :], part_a[:, None] * part_b[None, :])
    place = line_a[:, None] * n + column[None, :]
    tl.store(y + place, to_dtype(total, y.dtype.element_ty), mask=in_a[:, None] & in_b[None, :])


@lru_cache(maxsize=256)
def _depth(a: Format, b: Format, by_chip: bool) -> Depth | None:
    specs = [spec(format, options(format)) for format in (a, b)]
    fits = [f is not None and _is_multiplied(f) for f in specs]
    if not all(fits):
        return None
    if by_chip and all(_has_scaled_product(f) for f in (a, b)):
        return Depth(_SCALED_DEPTH, True, _NAMES[a.element], _NAMES[b.element])
    sizes = [f.per_scale for f in specs if f is not None and f.per_scale]
    depth = min([_DEPTH, *sizes])
    # The interpreter takes the bits of bfloat16 for integers, so there the same values are float32.
    # The smallest depth that tensor cores take, and no scale may change within it.
    return (
        Depth(depth, not triton.knobs.runtime.interpret, "", "")
        if depth >= 16 and all(size % depth == 0 for size in sizes)
        else None
    )


def _is_multiplied(f: Spec) -> bool:
    """Return whether bfloat16 holds the elements exactly, their shifts included."""
    grid = f.grid
    if grid is None or f.scaling == "none":
        return False
    return grid.m <= 7 and grid.emin - grid.m - f.largest_shift >= -126 and grid.bits <= 9


def _has_scaled_product(format: Format) -> bool:
    scales = format.groups.scales
    return format.element in _NAMES and scales is not None and scales.element == _E8M0 and scales.size == 32


def multiplies(a: Format, b: Format) -> bool:
    """Return whether :func:`product` multiplies matrices in these formats."""
    return _depth(a, b, False) is not None


def scales_products(device: torch.device) -> bool:
    """Return whether ``device`` multiplies by block scales: NVIDIA's chips from 10.0 on, AMD's gfx950."""
    if torch.version.hip:
        return torch.cuda.get_device_properties(device).gcnArchName.startswith("gfx950")
    return device.type == "cuda" and torch.cuda.get_device_capability(device)[0] >= 10


def product(
    a: tuple[torch.Tensor | None, ...],
    a_format: Format,
    b: tuple[torch.Tensor | None, ...],
    b_format: Format,
    shape: tuple[int, int, int, int],
    dtype: torch.dtype,
    *,
    by_chip: bool | None = None,
) -> torch.Tensor:
    """Return ``A @ B.T``, (batch, m, n), for packed A, (batch, m, k), and B, (batch, n, k), blocks along k.

    Products of elements are exact. Their sums are float32, in an order and with the rounding of the tensor
    cores: with u = 2^-24 the error is bounded by (k + 2) u |A| |B| where those round sums to nearest.

    Args:
        a: packed parts in C order, None for those that the format lacks.
        a_format: one that :func:`multiplies` accepts.
        b: likewise.
        b_format: likewise.
        shape: batch, m, n and k, none of them zero.
        dtype: float32, bfloat16 or float16; of the result.
        by_chip: whether the block scales are those of tl.dot_scaled; by default where the chip has it.
    """
    device = a[0].device if a[0] is not None else torch.device("cpu")
    depth = _depth(a_format, b_format, scales_products(device) if by_chip is None else by_chip)
    assert depth is not None
    batch, m, n, k = shape
    y = torch.empty(batch, m, n, dtype=dtype, device=device)
    most = _SCALED_TILE if depth.scaled else _TILE
    rows, columns = (max(16, min(most, triton.next_power_of_2(size))) for size in (m, n))
    product_kernel[(triton.cdiv(m, rows), triton.cdiv(n, columns), batch)](
        *a,
        *b,
        y,
        m,
        n,
        k,
        fa=spec(a_format, options(a_format)),
        fb=spec(b_format, options(b_format)),
        depth=depth,
        rows=rows,
        columns=columns,
        enable_fp_fusion=True,  # as in gemv: nothing but the rounding of sums depends on it
    )
    return y
