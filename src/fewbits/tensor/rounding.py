"""Rounding as a recipe describes it: one format, with the seed and the shift that it takes."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

import torch

from fewbits.formats import Format
from fewbits.tensor.functions import fake_quantize


def round_to(
    x: torch.Tensor,
    format: Format,
    *,
    axis: int = -1,
    rounding: str = "nearest_even",
    scale_rule: str = "floor",
    shift: int | None = None,
    overflow: str | None = "saturate",
    seed: int | None = None,
) -> torch.Tensor:
    """Return ``x`` rounded to a format with blocks along ``axis``; same shape and dtype, without gradient.

    What lies beyond the largest value saturates by default. ``shift`` divides by 2^(round(mean log2 |x|) +
    shift) before rounding and multiplies after it. ``seed`` is that of stochastic rounding, a fresh one by
    default.
    """
    x = x.detach()
    scale = 1.0 if shift is None else power(x, shift)
    rounded: torch.Tensor = fake_quantize(
        x if shift is None else x / scale,
        format,
        axis=axis,
        rounding=rounding,
        scale_rule=scale_rule,
        overflow=overflow,
        generator=fresh_seed(rounding) if seed is None else seed,
    )
    return rounded * scale if shift is not None else rounded


_DRAWS: ContextVar[torch.Generator | None] = ContextVar("draws", default=None)


@contextmanager
def drawing_from(generator: torch.Generator | None) -> Iterator[None]:
    """Let seeds come from a generator within; None is torch's own."""
    token = _DRAWS.set(generator)
    try:
        yield
    finally:
        _DRAWS.reset(token)


def fresh_seed(rounding: str) -> int | None:
    """Return a seed that ``torch.manual_seed`` repeats where the rounding needs one."""
    return int(torch.randint(2**62, (), generator=_DRAWS.get())) if rounding == "stochastic" else None


def power(x: torch.Tensor, shift: int) -> torch.Tensor:
    """Return 2^(round(mean log2 |x|) + shift) over what is not zero."""
    logs = x.abs().float().log2()
    there = logs.isfinite()
    mean = torch.where(there, logs, 0.0).sum() / there.sum().clamp(min=1)
    return torch.exp2(mean.round() + shift).to(x.dtype)
