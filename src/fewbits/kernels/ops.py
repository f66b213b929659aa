"""The operators as torch sees them: schema, shape function, gradient."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import astuple
from functools import lru_cache
from typing import Any

import torch

from fewbits import kernels
from fewbits.errors import ArgumentError
from fewbits.formats import Format, parse, shares_scale
from fewbits.formats.pattern import Pattern, pattern
from fewbits.kernels import sparse_stream
from fewbits.kernels.derivatives import derive
from fewbits.kernels.options import Options, options
from fewbits.kernels.reference import line_bytes
from fewbits.kernels.reference.sparse_stream import stream_bytes
from fewbits.kernels.sharding import is_sharded, register
from fewbits.kernels.tensors import NUMPY, array, empty_parts, packed, values

_read = lru_cache(maxsize=256)(parse)  # operators take formats as text


def _fake_quantize(
    x: torch.Tensor,
    axis: int,
    format: str,
    rounding: str,
    scale_rule: str,
    overflow: str,
    nonfinite: str,
    zero_block: str,
    seed: int,
    amax: float | None,
) -> torch.Tensor:
    chosen = Options(rounding, scale_rule, overflow, nonfinite, zero_block, seed)
    own = values(x)
    y = torch.empty(own.shape, dtype=own.dtype)
    kernels.fake_quantize(array(own), _read(format), axis, chosen, amax, out=array(y))
    return y.to(x.device, x.dtype)


# By hand, because what custom_op registers for autograd knows neither forward mode nor torch.func.
# The axis comes before the format: torch.distributed.tensor remembers by what follows the first integer.
_LIBRARY = torch.library.Library("fewbits", "FRAGMENT")  # type: ignore[no-untyped-call]  # lasts as long as this module


def _define(kernel: Callable[..., torch.Tensor], fake: Callable[..., torch.Tensor]) -> None:
    """Make an operator of a kernel and of what gives a result's shape."""
    name = kernel.__name__.lstrip("_")
    schema = name + torch.library.infer_schema(kernel, mutates_args=())
    _LIBRARY.define(schema, tags=(torch.Tag.pt2_compliant_tag,))  # type: ignore[no-untyped-call]
    _LIBRARY.impl(name, kernel, "CompositeExplicitAutograd")  # type: ignore[no-untyped-call]
    torch.library.register_fake(f"fewbits::{name}", fake, lib=_LIBRARY)


def _alike(x: torch.Tensor, *_: Any) -> torch.Tensor:
    return torch.empty(x.shape, dtype=x.dtype, device=x.device)


_define(_fake_quantize, _alike)


def _straight_through(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor]:
    return (gradient,)


def _tangent(ctx: Any, tangent: torch.Tensor) -> torch.Tensor:
    return tangent.view_as(tangent)  # torch forbids the very object


derive(_LIBRARY, "fake_quantize", 1, _straight_through, _tangent)


def _each_alone(
    info: Any, in_dims: Sequence[int | None], x: torch.Tensor, axis: int, format: str, *choices: Any
) -> tuple[torch.Tensor, int]:
    """Round each of a batch as it would be rounded alone."""
    assert in_dims[0] is not None
    batch = x.movedim(in_dims[0], 0)
    alone = shares_scale(_read(format), "tensor") or choices[0] == "stochastic"
    if alone and len(batch):
        each = [torch.ops.fewbits.fake_quantize(one, axis, format, *choices) for one in batch]
        return torch.stack(each), 0
    lines = batch if batch.ndim > 1 else batch.unsqueeze(1)  # of single values
    return torch.ops.fewbits.fake_quantize(lines, axis + 1, format, *choices).view_as(batch), 0


torch.library.register_vmap("fewbits::fake_quantize", _each_alone, lib=_LIBRARY)


@torch.library.custom_op("fewbits::quantize", mutates_args=())
def _quantize(
    x: torch.Tensor,
    axis: int,
    format: str,
    rounding: str,
    scale_rule: str,
    overflow: str,
    nonfinite: str,
    zero_block: str,
    seed: int,
    amax: float | None,
) -> list[torch.Tensor]:
    chosen = Options(rounding, scale_rule, overflow, nonfinite, zero_block, seed)
    own, fmt = values(x), _read(format)
    parts = empty_parts(fmt, tuple(own.shape), axis)
    kernels.quantize(array(own), fmt, axis, chosen, amax, out=packed(parts))
    return [part.to(x.device) for part in parts if part is not None]


@_quantize.register_fake
def _(x: torch.Tensor, axis: int, format: str, *_: Any) -> list[torch.Tensor]:
    parts = empty_parts(_read(format), tuple(x.shape), axis, x.device)
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
    kernels.dequantize(parts, _read(format), tuple(shape), axis, NUMPY[dtype], out=array(y))
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


@torch.library.custom_op("fewbits::gemv", mutates_args=())
def _gemv(
    x: torch.Tensor,
    codes: torch.Tensor,
    scales: torch.Tensor | None,
    shifts: torch.Tensor | None,
    outer: torch.Tensor | None,
    format: str,
    sparsity: str | None,
    lines: int,
) -> torch.Tensor:
    weight, of_x = packed((codes, scales, shifts, outer)), x.cpu()
    kept = None if sparsity is None else pattern(sparsity)
    narrow, y = x.dtype == torch.bfloat16, torch.empty(len(x), lines)
    rows = array(of_x.float())
    kernels.gemv(rows, weight, _read(format), lines, kept, narrow=narrow, out=array(y))
    return y.to(x.device, x.dtype)


@_gemv.register_fake
def _(
    x: torch.Tensor,
    codes: Any,
    scales: Any,
    shifts: Any,
    outer: Any,
    format: str,
    sparsity: str | None,
    lines: int,
) -> torch.Tensor:
    return x.new_empty((x.shape[0], lines))


def _bfloat16_product(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    y = torch.empty(len(a), b.shape[1])
    kernels.bfloat16_product(array(a), array(b), out=array(y))
    return y


def _empty_product(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    return a.new_empty((a.shape[0], b.shape[1]))


_define(_bfloat16_product, _empty_product)


def _product_gradients(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    a, b = ctx.saved_tensors
    return gradient @ b.t(), a.t() @ gradient


def _product_tangent(ctx: Any, of_a: torch.Tensor | None, of_b: torch.Tensor | None) -> torch.Tensor | None:
    a, b = ctx.saved_tensors
    left: torch.Tensor | None = None if of_a is None else of_a @ b
    right: torch.Tensor | None = None if of_b is None else a @ of_b
    if left is None or right is None:
        return right if left is None else left
    return left + right


derive(_LIBRARY, "bfloat16_product", 2, _product_gradients, _product_tangent, keeps=True)


def bfloat16_product(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """Return ``a @ b`` for float32 matrices on the CPU whose values are all normal bfloat16, or zero."""
    return torch.ops.fewbits.bfloat16_product(a, b)  # type: ignore[no-any-return]


def _addition_product(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    y = torch.empty(len(a), b.shape[1])
    kernels.addition_product(array(a), array(b), out=array(y))
    return y


def addition_product(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """Return ``a @ b`` of float32 matrices on the CPU, each product one integer sum of bit patterns.

    Its derivatives are such products too, as the paper has them.
    """
    return torch.ops.fewbits.addition_product(a, b)  # type: ignore[no-any-return]


def _addition_gradients(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    a, b = ctx.saved_tensors
    return addition_product(gradient, b.t()), addition_product(a.t(), gradient)


def _addition_tangent(ctx: Any, of_a: torch.Tensor | None, of_b: torch.Tensor | None) -> torch.Tensor | None:
    a, b = ctx.saved_tensors
    left = None if of_a is None else addition_product(of_a, b)
    right = None if of_b is None else addition_product(a, of_b)
    if left is None or right is None:
        return right if left is None else left
    return left + right


def _each_added(
    info: Any, in_dims: Sequence[int | None], a: torch.Tensor, b: torch.Tensor
) -> tuple[torch.Tensor, int]:
    """Multiply each of a batch."""
    of_a, of_b = (
        [t] * info.batch_size if dim is None else t.unbind(dim)
        for t, dim in zip((a, b), in_dims, strict=True)
    )
    return torch.stack([addition_product(x, y) for x, y in zip(of_a, of_b, strict=True)]), 0


_define(_addition_product, _empty_product)
derive(_LIBRARY, "addition_product", 2, _addition_gradients, _addition_tangent, keeps=True)
torch.library.register_vmap("fewbits::addition_product", _each_added, lib=_LIBRARY)


def gemv(
    x: torch.Tensor,
    parts: tuple[torch.Tensor | None, ...],
    fmt: Format,
    lines: int,
    sparsity: Pattern | None = None,
) -> torch.Tensor:
    """Return ``x @ W.T`` in x's dtype, W packed with its blocks along the last axis, summed in float32."""
    kept = None if sparsity is None else str(sparsity)
    return _gemv(x, *parts, fmt.grammar, kept, lines)  # type: ignore[no-any-return]


@torch.library.custom_op("fewbits::compress", mutates_args=())
def _compress(codes: torch.Tensor, format: str, n: int, sparsity: str) -> torch.Tensor:
    fmt, kept = _read(format), pattern(sparsity)
    bits = sparse_stream.element_of(fmt).bits
    stream = torch.empty((*codes.shape[:-1], stream_bytes(n, bits, kept)), dtype=torch.uint8)
    sparse_stream.compress(array(codes.cpu()), fmt, n, kept, kernels.threads(), out=array(stream))
    return stream.to(codes.device)


@_compress.register_fake
def _(codes: torch.Tensor, format: str, n: int, sparsity: str) -> torch.Tensor:
    bits = sparse_stream.element_of(_read(format)).bits
    return codes.new_empty((*codes.shape[:-1], stream_bytes(n, bits, pattern(sparsity))))


@torch.library.custom_op("fewbits::expand", mutates_args=())
def _expand(stream: torch.Tensor, format: str, n: int, sparsity: str) -> torch.Tensor:
    fmt, kept = _read(format), pattern(sparsity)
    bits = sparse_stream.element_of(fmt).bits
    codes = torch.empty((*stream.shape[:-1], line_bytes(n, bits)), dtype=torch.uint8)
    sparse_stream.expand(array(stream.cpu()), fmt, n, kept, kernels.threads(), out=array(codes))
    return codes.to(stream.device)


@_expand.register_fake
def _(stream: torch.Tensor, format: str, n: int, sparsity: str) -> torch.Tensor:
    bits = sparse_stream.element_of(_read(format)).bits
    return stream.new_empty((*stream.shape[:-1], line_bytes(n, bits)))


def compress(codes: torch.Tensor, fmt: Format, n: int, sparsity: Pattern) -> torch.Tensor:
    """Return the streams of packed codes of ``n`` values; errors are those of kernels/sparse_stream.py."""
    return _compress(codes, fmt.grammar, n, str(sparsity))  # type: ignore[no-any-return]


def expand(stream: torch.Tensor, fmt: Format, n: int, sparsity: Pattern) -> torch.Tensor:
    """Return the packed codes of streams of ``n`` values."""
    return _expand(stream, fmt.grammar, n, str(sparsity))  # type: ignore[no-any-return]


def quantize(
    x: torch.Tensor, fmt: str | Format, axis: int, amax: float | None, seed: int, **choices: str | None
) -> list[torch.Tensor]:
    """Return the packed parts of ``x`` that the format has: codes, scales, shifts, outer scales."""
    text, *rest = _decided(fmt, seed, **choices)
    return _quantize(x, axis, text, *rest, amax)  # type: ignore[no-any-return]


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
    if is_sharded(x):
        register()
    text, *rest = _decided(fmt, seed, **choices)
    return torch.ops.fewbits.fake_quantize(x, axis, text, *rest, amax)  # type: ignore[no-any-return]
