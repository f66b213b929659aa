"""Rounding as a recipe describes it: the format of a role, with the seed and the shift that it takes."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

import numpy as np
import torch

from fewbits.kernels import ops
from fewbits.kernels.bits.options import Choices
from fewbits.kernels.ops.sharding import is_sharded
from fewbits.recipes.recipe import VECTORS
from fewbits.recipes.role_format import RoleFormat


def round_as(
    x: torch.Tensor,
    target: RoleFormat,
    axis: int = -1,
    *,
    rounding: str | None = None,
    overflow: str | None = "saturate",
    seed: int | None = None,
) -> torch.Tensor:
    """Return ``x`` rounded as a role is; same shape and dtype, without gradient.

    The values are those of :func:`fewbits.fake_quantize`, after the shift of the role.

    Args:
        x: float16, bfloat16 or float32, of any shape.
        target: format, rounding, scale rule and shift of the role.
        axis: along which blocks lie.
        rounding: another one than the role's.
        overflow: what lies beyond the largest value becomes; None is the format's own way.
        seed: of stochastic rounding; a fresh one by default.
    """
    x = x.detach()
    rounding = rounding or target.rounding
    if seed is None:
        seed = fresh_seed(rounding)
    scale = None if target.shift is None else power(x, target.shift)
    rounded = ops.fake_quantize(
        x if scale is None else x.float() / scale,
        target.format,
        axis % x.ndim if x.ndim else 0,
        Choices(rounding, target.scale_rule, overflow),
        seed or 0,
        None,
    )
    return rounded if scale is None else (rounded * scale).to(x.dtype)


def hold(p: torch.Tensor, target: RoleFormat | None) -> None:
    """Round a parameter that somebody has written to as it is held, in place.

    A 16-bit dtype has rounded what was written. Values of two scales may change when they are rounded again,
    and stay, as those on the meta device and sharded ones do.
    """
    if target is None or str(target.format) in VECTORS or p.is_meta or is_sharded(p):
        return
    if target.format.groups.outer is None:
        p.copy_(round_as(p, target))


_DRAWS: ContextVar[torch.Generator | None] = ContextVar("draws", default=None)


@contextmanager
def drawing_from(generator: torch.Generator | None) -> Iterator[None]:
    """Draw the seeds of stochastic rounding from ``generator`` inside the context; None: torch's own."""
    token = _DRAWS.set(generator)
    try:
        yield
    finally:
        _DRAWS.reset(token)


def fresh_seed(rounding: str) -> int | None:
    """Return a seed that ``torch.manual_seed`` repeats where the rounding needs one."""
    return int(torch.randint(2**62, (), generator=_DRAWS.get())) if rounding == "stochastic" else None


def joint_seed(*parts: int) -> int:
    """Return a seed of torch's generator that differs with each part; of a seed it takes 32 bits only."""
    return int(np.random.SeedSequence(parts).generate_state(1)[0])


def power(x: torch.Tensor, shift: int) -> torch.Tensor:
    """Return 2^(round(mean log2 |x|) + shift), the mean over the values that are not zero.

    It is () float32, at most 2^127, so that quotients are float32 too: float16 has no room for many of them.
    """
    logs = x.abs().float().log2()
    nonzero = logs.isfinite()
    mean = torch.where(nonzero, logs, 0.0).sum() / nonzero.sum().clamp(min=1)
    return torch.exp2((mean.round() + shift).clamp(max=127))
