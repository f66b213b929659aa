"""The operators as torch sees them: schema, shape function, gradient."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import astuple
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from fewbits import kernels
from fewbits.errors import DTypeError
from fewbits.formats import Format, parse
from fewbits.kernels.layout import Packed, layout
from fewbits.kernels.options import Options, options


def opened(x: torch.Tensor, *, saturate: bool) -> tuple[NDArray[Any], Callable[[NDArray[Any]], torch.Tensor]]:
    """Return ``x`` as float32 or float64, and the function that gives a result x's own dtype and device.

    With ``saturate``, infinity is read as the largest value of x's own dtype, and NaN as zero.

    Raises:
        DTypeError: x is not floating point.
    """
    if not x.is_floating_point():
        raise DTypeError(f"a tensor of {x.dtype}; expected floating point: convert it with x.float()")
    device, dtype, own = x.device, x.dtype, x.detach()
    if saturate:
        own = own.nan_to_num(nan=0.0)
    array = (own if dtype == torch.float64 else own.float()).cpu().numpy()
    wide = array.dtype

    def close(y: NDArray[Any]) -> torch.Tensor:
        with np.errstate(over="ignore"):
            return torch.from_numpy(np.asarray(y, wide, order="C")).to(device, dtype)

    return array, close


@torch.library.custom_op("fewbits::fake_quantize", mutates_args=())
def _fake_quantize(
    x: torch.Tensor,
    format: str,
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
    array, close = opened(x, saturate=nonfinite == "saturate")
    return close(kernels.fake_quantize(array, parse(format), axis, chosen, amax))


@_fake_quantize.register_fake
def _(x: torch.Tensor, *_: Any) -> torch.Tensor:
    return torch.empty(x.shape, dtype=x.dtype, device=x.device)


def _straight_through(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
    return (gradient, *(None,) * 9)


_fake_quantize.register_autograd(_straight_through)


@torch.library.custom_op("fewbits::quantize", mutates_args=())
def _quantize(
    x: torch.Tensor,
    format: str,
    axis: int,
    rounding: str,
    scale_rule: str,
    overflow: str,
    nonfinite: str,
    zero_block: str,
    seed: int,
    amax: float | None,
) -> list[torch.Tensor]:
    chosen = Options(rounding, scale_rule, overflow, nonfinite, zero_block, seed)
    array, _ = opened(x, saturate=nonfinite == "saturate")
    parts = kernels.quantize(array, parse(format), axis, chosen, amax)
    return [torch.from_numpy(part).to(x.device) for part in parts if part is not None]


@_quantize.register_fake
def _(x: torch.Tensor, format: str, axis: int, *_: Any) -> list[torch.Tensor]:
    shapes = layout(parse(format), tuple(x.shape), axis)
    dtypes = (torch.uint8, torch.uint8, torch.uint8, torch.float32)
    return [x.new_empty(s, dtype=d) for s, d in zip(shapes, dtypes, strict=True) if s is not None]


@torch.library.custom_op("fewbits::dequantize", mutates_args=())
def _dequantize(
    codes: torch.Tensor,
    scales: torch.Tensor | None,
    shifts: torch.Tensor | None,
    outer: torch.Tensor | None,
    format: str,
    shape: list[int],
    axis: int,
    dtype: torch.dtype,
) -> torch.Tensor:
    arrays: list[Any] = [p if p is None else p.cpu().numpy() for p in (codes, scales, shifts, outer)]
    wide = np.float64 if dtype == torch.float64 else np.float32
    found = kernels.dequantize(Packed(*arrays), parse(format), tuple(shape), axis, wide)
    return torch.from_numpy(np.asarray(found, wide, order="C")).to(codes.device, dtype)


@_dequantize.register_fake
def _(
    codes: torch.Tensor,
    scales: torch.Tensor | None,
    shifts: torch.Tensor | None,
    outer: torch.Tensor | None,
    format: str,
    shape: list[int],
    axis: int,
    dtype: torch.dtype,
) -> torch.Tensor:
    return codes.new_empty(shape, dtype=dtype)


def quantize(
    x: torch.Tensor, fmt: str | Format, axis: int, amax: float | None, seed: int, **choices: str | None
) -> list[torch.Tensor]:
    """Return the packed parts of ``x`` that the format has: codes, scales, shifts, outer scales."""
    text, *rest = _decided(fmt, seed, **choices)
    return _quantize(x, text, axis, *rest, amax)  # type: ignore[no-any-return]


def dequantize(
    parts: tuple[torch.Tensor | None, ...], fmt: Format, shape: Any, axis: int, dtype: torch.dtype
) -> torch.Tensor:
    """Return the values of packed codes, scales, shifts and outer scales, in ``dtype`` on their device."""
    return _dequantize(*parts, fmt.grammar, list(shape), axis, dtype)  # type: ignore[no-any-return]


def _decided(fmt: str | Format, seed: int, **choices: str | None) -> tuple[str, str, str, str, str, str, int]:
    """Return the operator's own arguments: the format as text, and every choice made."""
    target = fmt if isinstance(fmt, Format) else parse(fmt)
    return (target.grammar, *astuple(options(target, seed=seed, **choices)))  # type: ignore[arg-type]


# What the arguments mean is settled while torch.compile traces: it takes the answer as it is.
torch.compiler.assume_constant_result(_decided)  # type: ignore[no-untyped-call]


def fake_quantize(
    x: torch.Tensor, fmt: str | Format, axis: int, amax: float | None, seed: int, **choices: str | None
) -> torch.Tensor:
    """Return ``x`` rounded to ``fmt``, same shape, dtype and device; the gradient passes straight through.

    ``choices`` and errors are those of :func:`fewbits.kernels.options.options`.
    """
    text, *rest = _decided(fmt, seed, **choices)
    return _fake_quantize(x, text, axis, *rest, amax)  # type: ignore[no-any-return]
