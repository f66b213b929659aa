"""The operators as torch sees them: schema, shape function, gradient."""

from __future__ import annotations

from dataclasses import astuple
from typing import Any

import numpy as np
import torch

from fewbits import kernels
from fewbits.formats import Format, parse
from fewbits.kernels.options import Options


@torch.library.custom_op("fewbits::fake_quantize", mutates_args=())
def _fake_quantize(
    x: torch.Tensor,
    format: str,  # noqa: A002 - the operator's public argument name
    axis: int,
    rounding: str,
    scale_rule: str,
    overflow: str,
    nonfinite: str,
    zero_block: str,
    seed: int,
    amax: float | None,
) -> torch.Tensor:
    chosen = Options(rounding, scale_rule, overflow, nonfinite, zero_block, seed)
    wide = x.detach() if x.dtype == torch.float64 else x.detach().float()
    rounded = kernels.fake_quantize(wide.cpu().numpy(), parse(format), axis, chosen, amax)
    return torch.from_numpy(np.ascontiguousarray(rounded)).to(x.device, x.dtype)


@_fake_quantize.register_fake
def _(x: torch.Tensor, *_: Any) -> torch.Tensor:
    return torch.empty(x.shape, dtype=x.dtype, device=x.device)


def _straight_through(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
    return (gradient, *(None,) * 9)


_fake_quantize.register_autograd(_straight_through)


def fake_quantize(x: torch.Tensor, fmt: Format, axis: int, chosen: Options, amax: float | None) -> torch.Tensor:
    """Return ``x`` rounded to ``fmt``, same shape, dtype and device; the gradient passes straight through."""
    return _fake_quantize(x, fmt.grammar, axis, *astuple(chosen), amax)  # type: ignore[no-any-return]
