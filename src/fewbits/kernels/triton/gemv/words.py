"""A packed matrix of 4 or 8 bits times few vectors: codes are read as words of 32 bits, each scale once.

A code is shifted to the upper end of its word and from there to where float32 has its exponent: a sign and a
magnitude are a number already, but for the bias of the exponent, which one multiplication mends.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl

from fewbits.kernels.triton.values.bits import INFINITY, NAN, float_of, to_dtype, to_float32
from fewbits.kernels.triton.values.decode import load_outer, load_scales, scale_value
from fewbits.kernels.triton.values.quick import power_of
from fewbits.kernels.triton.values.spec import Spec

# Lines that share the values of the vectors, and words of each at once, with few vectors and with more: the
# fastest on an H100.
_FEW = (4, 128)
_MORE = (16, 32)
_MOST_VECTORS = 8  # that share a decoded matrix; of more, each eight decode it anew
_WARPS = 4


@triton.jit
def _element(upper: tl.tensor, f: tl.constexpr) -> Any:
    """Return the values of codes in the upper bits of int32; of two's complement without their step."""
    e: tl.constexpr = f.grid
    q: tl.constexpr = f.quick
    if e.sign == "twos_complement":
        y = (upper >> (32 - e.bits)).to(tl.float32)
    else:
        magnitude = (upper >> (9 + e.m - e.bits)) & (((1 << (e.bits - 1)) - 1) << (23 - e.m))
        y = float_of(magnitude | (upper & -2147483648)) * q.from_code * q.from_code_too
        if e.inf is not None:
            signed = float_of((upper & -2147483648) | INFINITY)
            y = tl.where(magnitude == e.inf << (23 - e.m), signed, y)
            y = tl.where(magnitude > e.inf << (23 - e.m), float_of(tl.full(y.shape, NAN, tl.int32)), y)
        elif e.nan is not None:
            y = tl.where(magnitude == e.nan << (23 - e.m), float_of(tl.full(y.shape, NAN, tl.int32)), y)
    return y


@triton.jit
def words_kernel(
    x: tl.tensor,
    words: tl.tensor,
    scales: tl.tensor,
    outer: tl.tensor,
    y: tl.tensor,
    vectors: tl.tensor,
    lines: tl.tensor,
    n: tl.tensor,
    f: tl.constexpr,
    step: tl.constexpr,
    batch: tl.constexpr,
    rows: tl.constexpr,
    width: tl.constexpr,
    wide: tl.constexpr,
) -> None:
    """Store the products of ``rows`` lines with ``batch`` vectors; ``step`` is that of two's complement."""
    first = tl.program_id(0)
    vector = tl.program_id(1) * batch + tl.arange(0, batch)
    if wide:
        first = first.to(tl.int64)
        vector = vector.to(tl.int64)
    line = first * rows + tl.arange(0, rows)
    of_scale: tl.constexpr = f.scale
    bits: tl.constexpr = f.grid.bits
    codes: tl.constexpr = 32 // bits
    count = n // codes
    exists, there = line < lines, vector < vectors
    sums = tl.zeros([batch, rows, width], tl.float32)
    for start in range(0, count, width):
        at = start + tl.arange(0, width)
        inside = at < count
        both = exists[:, None] & inside[None, :]
        word = tl.load(words + line[:, None] * count + at[None, :], mask=both, other=0)
        found = tl.zeros([batch, rows, width], tl.float32)
        for k in tl.static_range(codes):
            v = tl.load(
                x + vector[:, None] * n + (at * codes + k)[None, :],
                mask=there[:, None] & inside[None, :],
                other=0.0,
            )
            v = to_float32(v)
            w = _element(word << (32 - bits * (k + 1)), f)
            found += v[:, None, :] * w[None, :, :]
        if f.scaling != "none":
            whole = load_scales(scales, line[:, None], line[:, None] * 0 + (at * codes)[None, :], both, n, f)
            if f.scaling == "power":
                factor = tl.where(whole == of_scale.nan, float("nan"), power_of(whole + of_scale.emin))
            else:
                factor = scale_value(whole, of_scale)
            found = found * factor[None, :, :]
        sums += found
    total = tl.sum(sums, axis=2) * step
    if f.scaling == "outer":
        total = total * load_outer(outer, line, exists, f)[None, :]
    tl.store(
        y + vector[:, None] * lines + line[None, :],
        to_dtype(total, y.dtype.element_ty),
        mask=there[:, None] & exists[None, :],
    )


def reads_words(f: Spec, n: int) -> bool:
    """Return whether :func:`gemv_words` multiplies lines of ``n`` values."""
    if f.grid is None or f.quick is None or f.grid.bits not in (4, 8) or f.per_shift:
        return False
    codes = 32 // f.grid.bits
    one_nan = f.grid.nan is None or f.grid.inf is not None or f.grid.nan < 1 << (f.grid.bits - 1)
    signed = f.grid.sign == "bit" or (f.grid.sign == "twos_complement" and f.grid.nan is None)
    return signed and one_nan and n % codes == 0 and f.per_scale % codes == 0


def gemv_words(
    x: torch.Tensor, parts: tuple[torch.Tensor | None, ...], f: Spec, lines: int, *, wide: bool
) -> torch.Tensor:
    """Return ``x @ W.T`` as :func:`fewbits.kernels.triton.gemv.gemv.gemv` does, where :func:`reads_words`."""
    codes, scales, _, outer = parts
    assert codes is not None
    assert f.grid is not None
    vectors, n = x.shape
    count = n * f.grid.bits // 32
    y = torch.empty(vectors, lines, dtype=x.dtype, device=x.device)
    batch = min(triton.next_power_of_2(vectors), _MOST_VECTORS)
    rows, width = _FEW if batch <= 2 else _MORE
    rows = min(rows, triton.next_power_of_2(lines))
    # Here nothing but the order of sums depends on contraction, and it halves the instructions.
    words_kernel[(triton.cdiv(lines, rows), triton.cdiv(vectors, batch))](
        x.contiguous(),
        codes.contiguous().view(-1).view(torch.int32),
        None if scales is None else scales.contiguous(),
        outer,
        y,
        vectors,
        lines,
        n,
        f=f,
        step=2.0 ** (f.grid.emin - f.grid.m) if f.grid.sign == "twos_complement" else 1.0,
        batch=batch,
        rows=rows,
        width=min(width, triton.next_power_of_2(count)),
        wide=wide,
        num_warps=_WARPS,
        enable_fp_fusion=True,
    )
    return y
