"""The operators that quantize, dequantize and fake-quantize: kernel, shape function, gradient, vmap."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from fewbits.errors import ArgumentError
from fewbits.formats import Format, parse, shares_scale
from fewbits.kernels.arrays import conversions
from fewbits.kernels.bits.options import Choices, decide, read_options
from fewbits.kernels.ops.derivatives import derive
from fewbits.kernels.ops.library import LIBRARY, define, read_format
from fewbits.kernels.ops.sharding import is_sharded, register
from fewbits.kernels.ops.tensors import NUMPY, array, empty_parts, packed, values


def _fake_quantize(
    x: torch.Tensor,
    axis: int,
    format: str,
    options: str,
    seed: int,
    amax: float | None,
) -> torch.Tensor:
    chosen = read_options(options, seed)
    own = values(x)
    y = torch.empty(own.shape, dtype=own.dtype)
    conversions.fake_quantize(array(own), read_format(format), axis, chosen, amax, out=array(y))
    return y.to(x.device, x.dtype)


def _alike(x: torch.Tensor, *_: Any) -> torch.Tensor:
    return torch.empty(x.shape, dtype=x.dtype, device=x.device)


define(_fake_quantize, _alike)


def _straight_through(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor]:
    return (gradient,)


def _tangent(ctx: Any, tangent: torch.Tensor) -> torch.Tensor:
    return tangent.view_as(tangent)  # torch forbids the very object


derive(LIBRARY, "fake_quantize", 1, _straight_through, _tangent)


def _each_alone(
    info: Any,
    in_dims: Sequence[int | None],
    x: torch.Tensor,
    axis: int,
    format: str,
    options: str,
    *rest: Any,
) -> tuple[torch.Tensor, int]:
    """Round each item of a batch as if it were alone."""
    assert in_dims[0] is not None
    batch = x.movedim(in_dims[0], 0)
    alone = shares_scale(read_format(format), "tensor") or read_options(options, 0).rounding == "stochastic"
    if alone and len(batch):
        each = [torch.ops.fewbits.fake_quantize(one, axis, format, options, *rest) for one in batch]
        return torch.stack(each), 0
    lines = batch if batch.ndim > 1 else batch.unsqueeze(1)  # of single values
    return torch.ops.fewbits.fake_quantize(lines, axis + 1, format, options, *rest).view_as(batch), 0


torch.library.register_vmap("fewbits::fake_quantize", _each_alone, lib=LIBRARY)


@torch.library.custom_op("fewbits::quantize", mutates_args=())
def _quantize(
    x: torch.Tensor,
    axis: int,
    format: str,
    options: str,
    seed: int,
    amax: float | None,
) -> list[torch.Tensor]:
    chosen = read_options(options, seed)
    own, fmt = values(x), read_format(format)
    parts = empty_parts(fmt, tuple(own.shape), axis)
    conversions.quantize(array(own), fmt, axis, chosen, amax, out=packed(parts))
    return [part.to(x.device) for part in parts if part is not None]


@_quantize.register_fake
def _(x: torch.Tensor, axis: int, format: str, *_: Any) -> list[torch.Tensor]:
    parts = empty_parts(read_format(format), tuple(x.shape), axis, x.device)
    return [part for part in parts if part is not None]


@_quantize.register_vmap
def _(info: Any, in_dims: Any, x: torch.Tensor, axis: int, format: str, *_: Any) -> Any:
    raise ArgumentError(
        f"quantize to {format} under torch.vmap; a packed tensor is not one of a batch: quantize the whole"
        " batch outside of vmap, or take fake_quantize, which gives the values"
    )


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
    y = torch.empty(shape, dtype=dtype)
    parts = packed((codes, scales, shifts, outer))
    conversions.dequantize(parts, read_format(format), tuple(shape), axis, NUMPY[dtype], out=array(y))
    return y.to(codes.device)


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
    x: torch.Tensor, format: str | Format, axis: int, choices: Choices, seed: int, amax: float | None
) -> list[torch.Tensor]:
    """Return the packed parts of ``x`` that the format has: codes, scales, shifts, outer scales."""
    text, options = _decided(format, *choices)
    parts: list[torch.Tensor] = _quantize(x, axis, text, options, seed, amax)
    return parts


def dequantize(
    parts: tuple[torch.Tensor | None, ...],
    format: Format,
    shape: Sequence[int],
    axis: int,
    dtype: torch.dtype,
) -> torch.Tensor:
    """Return the values of packed codes, scales, shifts and outer scales, in ``dtype`` on their device."""
    values: torch.Tensor = _dequantize(*parts, format.grammar, list(shape), axis, dtype)
    return values


def fake_quantize(
    x: torch.Tensor, format: str | Format, axis: int, choices: Choices, seed: int, amax: float | None
) -> torch.Tensor:
    """Return ``x`` rounded to a format, same shape, dtype and device; the gradient passes straight through.

    Errors are those of :func:`fewbits.kernels.bits.options.decide`.
    """
    if is_sharded(x):
        register()
    text, options = _decided(format, *choices)
    y: torch.Tensor = torch.ops.fewbits.fake_quantize(x, axis, text, options, seed, amax)
    return y


def _decided(format: str | Format, *choices: Any) -> tuple[str, str]:
    """Return the format and the complete options as text, which the operators take.

    The fields of :class:`Choices` come one by one: torch.compile loses those of a named tuple.
    """
    target = read_format(format) if isinstance(format, str) else parse(format)
    return target.grammar, decide(target, Choices(*choices)).text


# The options are decided while torch.compile traces; the result is a constant of the graph.
torch.compiler.assume_constant_result(_decided)
