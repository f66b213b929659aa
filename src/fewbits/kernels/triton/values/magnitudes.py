"""The largest magnitude of long groups, before they are rounded: lines, whole tensors, long blocks."""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl

from fewbits.kernels.triton.values.bits import INFINITY, magnitude_of, to_float32
from fewbits.kernels.triton.values.geometry import Lines, Work, place_of, steps, walk


@triton.jit
def read(
    x: tl.tensor, residual: tl.tensor, at: tl.tensor, i: tl.tensor, inside: tl.tensor, saturate: tl.constexpr
) -> Any:
    """Return the float32 values of x at ``at``, plus those of the residual at ``i`` unless that is None.

    Where they saturate, NaN is zero and infinity the largest value of x's dtype, or of float32 for sums.
    """
    dtype: tl.constexpr = x.dtype.element_ty if residual is None else tl.float32
    y = to_float32(tl.load(x + at, mask=inside, other=0.0))
    if residual is not None:
        y = y + tl.load(residual + i, mask=inside, other=0.0)
    if saturate:
        if dtype == tl.float16:
            top = 65504.0
        elif dtype == tl.bfloat16:
            top = 3.3895313892515355e38
        else:
            top = 3.4028234663852886e38
        magnitude = magnitude_of(y)
        y = tl.where(magnitude > INFINITY, 0.0, y)
        y = tl.where(magnitude == INFINITY, tl.where(y > 0, top, -top), y)
    return y


@triton.jit
def measure_kernel(
    x: tl.tensor,
    residual: tl.tensor,
    largest: tl.tensor,
    bad: tl.tensor,
    lines: tl.tensor,
    behind: tl.tensor,
    n: tl.tensor,
    step_before: tl.tensor,
    step_behind: tl.tensor,
    step: tl.tensor,
    groups: tl.tensor,
    size: tl.tensor,
    parts: tl.tensor,
    saturate: tl.constexpr,
    among: tl.constexpr,
    rows: tl.constexpr,
    width: tl.constexpr,
    along: tl.constexpr,
    wide: tl.constexpr,
) -> None:
    """Raise ``largest`` to the bits of the largest finite magnitudes, ``bad`` to 1 where not all is finite.

    A maximum of integers does not depend on the order in which programs come.
    """
    line, before, after, group, _, exists, i, inside = place_of(
        lines, behind, n, groups, size, parts, rows, width, along, wide
    )
    at = (before * step_before + after * step_behind)[:, None] + i * step
    magnitude = magnitude_of(read(x, residual, at, i, inside, saturate))
    finite = magnitude < INFINITY
    most = tl.max(tl.where(finite, magnitude, 0), axis=1)
    not_finite = tl.max(tl.where(finite, 0, 1), axis=1)
    if among == "tensor":
        tl.atomic_max(largest, tl.max(most, axis=0))
        tl.atomic_max(bad, tl.max(not_finite, axis=0))
    else:
        place = line * groups + group if among == "block" else line
        tl.atomic_max(largest + place, most, mask=exists)
        tl.atomic_max(bad + place, not_finite, mask=exists)


def measured(
    x: torch.Tensor,
    lines: Lines,
    work: Work,
    among: str,
    width: int,
    *,
    saturate: bool,
    residual: torch.Tensor | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return bits of the largest magnitude, and 1 where not all is finite, for each group of ``among``.

    Args:
        x: as the lines say.
        lines: of x.
        work: how they are cut.
        among: ``block`` (a long one), ``channel`` or ``tensor``.
        width: values side by side in a program.
        saturate: whether infinities count as the largest value of x's dtype, and NaN as zero.
        residual: float32 of x's shape in C order that is added first, or None; x is then flat.
    """
    count = {"tensor": 1, "channel": lines.total}.get(among, lines.total * work.groups)
    both = torch.zeros(2, count, dtype=torch.int32, device=x.device)
    measure_kernel[(work.programs,)](
        x,
        residual,
        both[0],
        both[1],
        **walk(lines, work),
        **steps(lines),
        saturate=saturate,
        among=among,
        width=width,
        enable_fp_fusion=False,
    )
    return both[0], both[1]
