"""The operators that quantize, dequantize and fake-quantize: kernel, shape function, gradient, vmap."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any

import torch

from fewbits.errors import ArgumentError
from fewbits.formats import Format, parse, shares_scale
from fewbits.graphs import constant_in_graphs
from fewbits.kernels import exact_arithmetic, portable
from fewbits.kernels.arrays import conversions
from fewbits.kernels.arrays import lent as kernels
from fewbits.kernels.bits.layout import layout
from fewbits.kernels.bits.options import Choices, Options, decide, read_format, read_options
from fewbits.kernels.ops import at_once, by_triton
from fewbits.kernels.ops.backends import active_backend, is_native
from fewbits.kernels.ops.derivatives import apart, derive
from fewbits.kernels.ops.direct import is_ordinary, is_recorded
from fewbits.kernels.ops.library import LIBRARY, define
from fewbits.kernels.ops.memory import empty
from fewbits.kernels.ops.sharding import is_sharded, register
from fewbits.kernels.ops.tensors import (
    DTYPES_OF_PARTS,
    NUMPY,
    are_lent,
    array,
    empty_parts,
    is_lent,
    lent,
    lent_parts,
    packed,
    values,
)


def _fake_quantize(
    x: torch.Tensor,
    axis: int,
    format: str,
    options: str,
    seed: int,
    amax: float | None,
) -> torch.Tensor:
    if not is_native(x):
        return _portable_fake_quantize(x, axis, format, options, seed, amax)
    planned = _planned(x, axis, format, options)
    if planned is not None:
        y = empty(x.shape, x.dtype)
        if kernels.fake_quantize(planned, lent(x), lent(y), seed, amax):
            conversions.refuse(array(x), read_format(format), planned.nonfinite)
        return y
    chosen = read_options(options, seed)
    own = values(x)
    y = empty(own.shape, own.dtype)
    conversions.fake_quantize(array(own), read_format(format), axis, chosen, amax, out=array(y))
    return y.to(x.dtype)


def _planned(x: torch.Tensor, axis: int, format: str, options: str) -> kernels.Plan | None:
    """Return the plan of rounding ``x`` where it lies; None if it has to become an array first."""
    if not is_lent(x):
        return None
    found = kernels.plan(format, options, x.shape, None if x.is_contiguous() else x.stride(), axis)
    return None if found is None or kernels.decided_by_infinity(found) else found


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
    operator: Callable[..., torch.Tensor] = torch.ops.fewbits.fake_quantize,
) -> tuple[torch.Tensor, int]:
    """Round each item of a batch as if it were alone."""
    assert in_dims[0] is not None
    batch = x.movedim(in_dims[0], 0)
    alone = shares_scale(read_format(format), "tensor") or read_options(options, 0).rounding == "stochastic"
    if alone and len(batch):
        each = [operator(one, axis, format, options, *rest) for one in batch]
        return torch.stack(each), 0
    lines = batch if batch.ndim > 1 else batch.unsqueeze(1)  # of single values
    return operator(lines, axis + 1, format, options, *rest).view_as(batch), 0


torch.library.register_vmap("fewbits::fake_quantize", _each_alone, lib=LIBRARY)


def _quantize(
    x: torch.Tensor,
    axis: int,
    format: str,
    options: str,
    seed: int,
    amax: float | None,
) -> list[torch.Tensor]:
    if not is_native(x):
        return _portable_quantize(x, axis, format, options, seed, amax)
    planned, fmt = _planned(x, axis, format, options), read_format(format)
    if planned is not None:
        parts = empty_parts(fmt, tuple(x.shape), axis)
        if kernels.quantize(planned, lent(x), lent_parts(parts), seed, amax):
            conversions.refuse(array(x), fmt, planned.nonfinite)
        return [part for part in parts if part is not None]
    own = values(x)
    parts = empty_parts(fmt, tuple(own.shape), axis)
    conversions.quantize(array(own), fmt, axis, read_options(options, seed), amax, out=packed(parts))
    return [part for part in parts if part is not None]


def _empty_codes(x: torch.Tensor, axis: int, format: str, *_: Any) -> list[torch.Tensor]:
    shapes = layout(read_format(format), tuple(x.shape), axis)
    made = zip(shapes, DTYPES_OF_PARTS, strict=True)
    return [torch.empty(s, dtype=d, device=x.device) for s, d in made if s is not None]


define(_quantize, _empty_codes)


def _not_of_a_batch(info: Any, in_dims: Any, x: torch.Tensor, axis: int, format: str, *_: Any) -> Any:
    raise ArgumentError(
        f"quantize to {format} under torch.vmap; a packed tensor is not one of a batch: quantize the whole"
        " batch outside of vmap, or take fake_quantize, which gives the values"
    )


torch.library.register_vmap("fewbits::quantize", _not_of_a_batch, lib=LIBRARY)


def _quantize_both(
    x: torch.Tensor, of_rows: str, of_columns: str, options_rows: str, options_columns: str
) -> list[torch.Tensor]:
    along = [
        (read_format(format), read_options(options, 0))
        for format, options in ((of_rows, options_rows), (of_columns, options_columns))
    ]
    if not is_native(x) and by_triton.quantizes_both(x, along[0], along[1]):
        return by_triton.quantize_both(x, along[0], along[1])
    rows = _quantize(x, 1, of_rows, options_rows, 0, None)
    return [*rows, *_quantize(x, 0, of_columns, options_columns, 0, None)]


def _empty_both(x: torch.Tensor, of_rows: str, of_columns: str, *_: Any) -> list[torch.Tensor]:
    return [*_empty_codes(x, 1, of_rows), *_empty_codes(x, 0, of_columns)]


define(_quantize_both, _empty_both)


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
    parts = (codes, scales, shifts, outer)
    if not is_native(codes):
        return _portable_dequantize(parts, format, shape, axis, dtype)
    y = empty(shape, dtype)
    lends = is_lent(y) and are_lent(parts)
    if lends and kernels.dequantize(lent_parts(parts), lent(y), format, tuple(shape), axis):
        return y
    conversions.dequantize(packed(parts), read_format(format), tuple(shape), axis, NUMPY[dtype], out=array(y))
    return y


def _empty_values(
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


define(_dequantize, _empty_values)


def quantize(
    x: torch.Tensor, format: str | Format, axis: int, choices: Choices, seed: int, amax: float | None
) -> list[torch.Tensor]:
    """Return the packed parts of ``x`` that the format has: codes, scales, shifts, outer scales."""
    text, options = _decided(format, *choices)
    call = _quantize if is_ordinary(x) else torch.ops.fewbits.quantize
    if _is_fused(x):
        return _fused_quantize(x, axis, text, options, seed, amax)
    parts: list[torch.Tensor] = call(x, axis, text, options, seed, amax)
    return parts


def quantize_both(
    x: torch.Tensor, rows: tuple[Format, Choices], columns: tuple[Format, Choices]
) -> tuple[by_triton.Parts, by_triton.Parts] | None:
    """Return codes and scales of a matrix with blocks along its rows, and along its columns, from one read.

    They are those of :func:`quantize` along the axes 1 and 0. None where no kernel does both at once.

    Args:
        x: (m, n), on a device where :func:`multiplies_rounded` is true.
        rows: a format of codes and scales, and how to round to it.
        columns: likewise.
    """
    along = [(format, decide(format, choices)) for format, choices in (rows, columns)]
    looks = any(chosen.nonfinite == "raise" for _, chosen in along)  # that is a pass of its own
    if looks or is_native(x) or not by_triton.quantizes_both(x, along[0], along[1]):
        return None
    texts = [format.grammar for format, _ in along], [chosen.text for _, chosen in along]
    parts = torch.ops.fewbits.quantize_both(x.detach(), *texts[0], *texts[1])
    return tuple(parts[:2]), tuple(parts[2:])


def dequantize(
    parts: tuple[torch.Tensor | None, ...],
    format: Format,
    shape: Sequence[int],
    axis: int,
    dtype: torch.dtype,
) -> torch.Tensor:
    """Return the values of packed codes, scales, shifts and outer scales, in ``dtype`` on their device."""
    y = at_once.dequantize(parts, format, tuple(shape), axis, dtype)
    if y is not None:
        return y
    present = [part for part in parts if part is not None]
    call = _dequantize if is_ordinary(*present) else torch.ops.fewbits.dequantize
    codes, scales, shifts, outer = parts
    assert codes is not None
    if _is_fused(codes):
        return _portable_dequantize(parts, format.grammar, shape, axis, dtype)
    values: torch.Tensor = call(codes, scales, shifts, outer, format.grammar, list(shape), axis, dtype)
    return values


def fake_quantize(
    x: torch.Tensor, format: str | Format, axis: int, choices: Choices, seed: int, amax: float | None
) -> torch.Tensor:
    """Return ``x`` rounded to a format, same shape, dtype and device; the gradient passes straight through.

    Errors are those of :func:`fewbits.kernels.bits.options.decide`.
    """
    text, options = _decided(format, *choices)
    if is_ordinary(x) and not is_recorded(x):
        return _fake_quantize(x, axis, text, options, seed, amax)
    if is_sharded(x):
        register()
    elif _is_fused(x):
        return _fused_fake_quantize(x, axis, text, options, seed, amax)
    y: torch.Tensor = torch.ops.fewbits.fake_quantize(x, axis, text, options, seed, amax)
    return y


def _is_fused(x: torch.Tensor) -> bool:
    """Return whether a graph is to hold plain operations of torch in place of one operator of ours.

    So the compiler fuses them into what is around them.
    """
    if not torch.compiler.is_compiling() or active_backend(x.device) != "portable":
        return False
    _allow_in_graphs()
    return True


@constant_in_graphs
def _allow_in_graphs() -> None:
    """Have torch.compile run these as they are, on tensors without values, and record their operations."""
    for function in (_fused_fake_quantize, _fused_quantize, _portable_dequantize):
        torch.compiler.allow_in_graph(function)


class _StraightThrough(torch.autograd.Function):
    """Rounding by plain operations of torch, whose gradient passes straight through."""

    @staticmethod
    def forward(
        x: torch.Tensor, axis: int, format: str, options: str, seed: int, amax: float | None
    ) -> torch.Tensor:
        chosen = read_options(options, seed)
        y = portable.fake_quantize(x, read_format(format), axis, chosen, amax)
        return apart(y) if chosen.nonfinite != "raise" else torch.where(_finite(x, format), y, torch.nan)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: torch.Tensor) -> None:
        ctx.others = (None,) * (len(inputs) - 1)

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        return gradient, *ctx.others

    @staticmethod
    def jvp(ctx: Any, tangent: torch.Tensor, *_: Any) -> torch.Tensor:
        return _tangent(ctx, tangent)

    @staticmethod
    def vmap(info: Any, in_dims: Sequence[int | None], *args: Any) -> tuple[torch.Tensor, int]:
        return _each_alone(info, in_dims, *args, operator=_fused_fake_quantize)


def _fused_fake_quantize(x: torch.Tensor, *args: Any) -> torch.Tensor:
    y: torch.Tensor = _StraightThrough.apply(x, *args)  # type: ignore[no-untyped-call]  # of torch
    return y


def _fused_quantize(
    x: torch.Tensor, axis: int, format: str, options: str, seed: int, amax: float | None
) -> list[torch.Tensor]:
    chosen, x = read_options(options, seed), x.detach()
    codes, *others = portable.quantize(x, read_format(format), axis, chosen, amax)
    return [codes if chosen.nonfinite != "raise" else torch.where(_finite(x, format), codes, 0), *others]


def _finite(x: torch.Tensor, format: str) -> torch.Tensor:
    """Return true, when it is run, or raise; what depends on the result keeps the check in a graph."""
    found: torch.Tensor = torch.ops.fewbits.all_finite(x, format)
    return found


def _all_finite(x: torch.Tensor, format: str) -> torch.Tensor:
    finite = portable.is_finite(x)
    if not x.is_cpu:  # nothing waits for the device, which stops where it gets there
        torch._assert_async(
            finite,
            f"the tensor holds NaN or infinity, and nonfinite='raise' refuses them for {format}; clean the"
            " data, or pass nonfinite='saturate'",
        )
    elif not finite:
        conversions.refuse(array(values(x)), read_format(format), "raise")
    return finite


def _one_truth(x: torch.Tensor, *_: Any) -> torch.Tensor:
    return torch.empty((), dtype=torch.bool, device=x.device)


define(_all_finite, _one_truth)


def _chosen(x: torch.Tensor, format: str, options: str, seed: int) -> tuple[Format, Options]:
    """Return the format and the options, once ``x`` holds no number that they refuse."""
    chosen = read_options(options, seed)
    if chosen.nonfinite == "raise":
        _all_finite(x, format)
    return read_format(format), chosen


@exact_arithmetic()
def _portable_fake_quantize(
    x: torch.Tensor, axis: int, format: str, options: str, seed: int, amax: float | None
) -> torch.Tensor:
    fmt, chosen = _chosen(x, format, options, seed)
    if by_triton.takes(x, fmt, chosen):
        return by_triton.fake_quantize(x, fmt, axis, chosen, amax)
    return portable.fake_quantize(x, fmt, axis, chosen, amax)


@exact_arithmetic()
def _portable_quantize(
    x: torch.Tensor, axis: int, format: str, options: str, seed: int, amax: float | None
) -> list[torch.Tensor]:
    fmt, chosen = _chosen(x, format, options, seed)
    if by_triton.takes(x, fmt, chosen):
        return by_triton.quantize(x, fmt, axis, chosen, amax)
    return portable.quantize(x, fmt, axis, chosen, amax)


@exact_arithmetic()
def _portable_dequantize(
    parts: tuple[torch.Tensor | None, ...], format: str, shape: Sequence[int], axis: int, dtype: torch.dtype
) -> torch.Tensor:
    fmt = read_format(format)
    if parts[0] is not None and by_triton.takes(parts[0], fmt, dtype=dtype):
        return by_triton.dequantize(parts, fmt, tuple(shape), axis, dtype)
    return portable.dequantize(parts, fmt, tuple(shape), axis, dtype)


@constant_in_graphs
def _decided(format: str | Format, *choices: Any) -> tuple[str, str]:
    """Return the format and the complete options as text, which the operators take.

    The fields of :class:`Choices` come one by one: torch.compile loses those of a named tuple.
    """
    text = format if isinstance(format, str) else parse(format).grammar
    try:
        return _decided_once(text, *choices)
    except TypeError:  # a choice that cannot be hashed
        return _decided_once.__wrapped__(text, *choices)


@lru_cache(maxsize=1024, typed=True)  # as those of what is decided
def _decided_once(format: str, *choices: Any) -> tuple[str, str]:
    target = read_format(format)
    return target.grammar, decide(target, Choices(*choices)).text
