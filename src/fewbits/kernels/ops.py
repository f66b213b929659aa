"""The operators as torch sees them: schema, shape function, gradient."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import astuple
from functools import lru_cache
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from fewbits import kernels
from fewbits.errors import DTypeError
from fewbits.formats import Format, parse
from fewbits.formats.pattern import Pattern, pattern
from fewbits.kernels import sparse_stream
from fewbits.kernels.layout import Packed, layout
from fewbits.kernels.options import Options, options
from fewbits.kernels.reference import line_bytes
from fewbits.kernels.reference.sparse_stream import stream_bytes


def opened(x: torch.Tensor) -> tuple[NDArray[Any], Callable[[NDArray[Any]], torch.Tensor]]:
    """Return ``x`` as :mod:`fewbits.kernels` takes it, and what gives a result x's dtype and device.

    Raises:
        DTypeError: x is not floating point.
    """
    if not x.is_floating_point():
        raise DTypeError(f"a tensor of {x.dtype}; expected floating point: convert it with x.float()")
    device, dtype, own = x.device, x.dtype, x.detach().cpu()
    if dtype not in _DTYPES:  # torch's own narrow types
        own = own.float()

    def close(y: NDArray[Any]) -> torch.Tensor:
        return _tensor(y).to(device, dtype)

    return _array(own), close


_DTYPES = {
    torch.float64: np.dtype(np.float64),
    torch.float32: np.dtype(np.float32),
    torch.float16: np.dtype(np.float16),
    torch.bfloat16: kernels.BFLOAT16,
}

_read = lru_cache(maxsize=256)(parse)  # operators take formats as text


def _array(x: torch.Tensor) -> NDArray[Any]:
    found: NDArray[Any] = (x.view(torch.uint16) if x.dtype == torch.bfloat16 else x).numpy()
    return found


def _tensor(y: NDArray[Any]) -> torch.Tensor:
    tensor = torch.from_numpy(y)
    return tensor.view(torch.bfloat16) if y.dtype == kernels.BFLOAT16 else tensor


def packed(parts: Iterable[torch.Tensor | None]) -> Packed:
    """Return parts as :mod:`fewbits.kernels` takes them; on the CPU they share their memory."""
    arrays: list[Any] = [None if part is None else part.cpu().numpy() for part in parts]
    return Packed(*arrays)


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
    array, close = opened(x)
    return close(kernels.fake_quantize(array, _read(format), axis, chosen, amax))


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
    array, _ = opened(x)
    parts = kernels.quantize(array, _read(format), axis, chosen, amax)
    return [torch.from_numpy(part).to(x.device) for part in parts if part is not None]


@_quantize.register_fake
def _(x: torch.Tensor, format: str, axis: int, *_: Any) -> list[torch.Tensor]:
    shapes = layout(_read(format), tuple(x.shape), axis)
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
    found = kernels.dequantize(
        packed((codes, scales, shifts, outer)), _read(format), tuple(shape), axis, _DTYPES[dtype]
    )
    return _tensor(found).to(codes.device)


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


@torch.library.custom_op("fewbits::thin_product", mutates_args=())
def _thin_product(
    x: torch.Tensor,
    codes: torch.Tensor,
    scales: torch.Tensor | None,
    shifts: torch.Tensor | None,
    outer: torch.Tensor | None,
    format: str,
    sparsity: str | None,
    lines: int,
) -> torch.Tensor:
    weight, of_x = packed((codes, scales, shifts, outer)), x.detach().cpu()
    kept = None if sparsity is None else pattern(sparsity)
    narrow = x.dtype == torch.bfloat16
    y = kernels.thin_product(of_x.float().numpy(), weight, _read(format), lines, kept, narrow=narrow)
    return torch.from_numpy(y).to(x.device, x.dtype)


@_thin_product.register_fake
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


@torch.library.custom_op("fewbits::bfloat16_product", mutates_args=())
def bfloat16_product(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """Return ``a @ b`` for float32 matrices on the CPU whose values are all normal bfloat16, or zero."""
    return torch.from_numpy(kernels.bfloat16_product(a.detach().numpy(), b.detach().numpy()))


@bfloat16_product.register_fake
def _empty_product(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    return a.new_empty((a.shape[0], b.shape[1]))


@torch.library.custom_op("fewbits::addition_product", mutates_args=())
def addition_product(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """Return ``a @ b`` for float32 matrices on the CPU, each product one integer sum of bit patterns."""
    return torch.from_numpy(kernels.addition_product(a.detach().numpy(), b.detach().numpy()))


addition_product.register_fake(_empty_product)


def _keep_operands(ctx: Any, inputs: tuple[torch.Tensor, torch.Tensor], output: torch.Tensor) -> None:
    ctx.save_for_backward(*inputs)


def _product_gradients(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    a, b = ctx.saved_tensors
    return gradient @ b.t(), a.t() @ gradient


bfloat16_product.register_autograd(_product_gradients, setup_context=_keep_operands)


def thin_product(
    x: torch.Tensor,
    parts: tuple[torch.Tensor | None, ...],
    fmt: Format,
    lines: int,
    sparsity: Pattern | None = None,
) -> torch.Tensor:
    """Return ``x @ W.T`` in x's dtype, W packed with its blocks along the last axis, summed in float32."""
    kept = None if sparsity is None else str(sparsity)
    return _thin_product(x, *parts, fmt.grammar, kept, lines)  # type: ignore[no-any-return]


@torch.library.custom_op("fewbits::compress", mutates_args=())
def _compress(codes: torch.Tensor, format: str, n: int, sparsity: str) -> torch.Tensor:
    found = sparse_stream.compress(
        codes.cpu().numpy(), _read(format), n, pattern(sparsity), kernels.threads()
    )
    return torch.from_numpy(found).to(codes.device)


@_compress.register_fake
def _(codes: torch.Tensor, format: str, n: int, sparsity: str) -> torch.Tensor:
    bits = sparse_stream.element_of(_read(format)).bits
    return codes.new_empty((*codes.shape[:-1], stream_bytes(n, bits, pattern(sparsity))))


@torch.library.custom_op("fewbits::expand", mutates_args=())
def _expand(stream: torch.Tensor, format: str, n: int, sparsity: str) -> torch.Tensor:
    found = sparse_stream.expand(stream.cpu().numpy(), _read(format), n, pattern(sparsity), kernels.threads())
    return torch.from_numpy(found).to(stream.device)


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
