"""Operations on flat tensors, as processes exchange them; nothing differentiates them.

On the CPU each is one pass of a compiled kernel, elsewhere operations of torch on the same device.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache, wraps
from typing import ParamSpec, TypeVar

import torch

from fewbits.errors import ArgumentError, DTypeError
from fewbits.formats import Format, parse
from fewbits.kernels import exact_arithmetic, portable
from fewbits.kernels.arrays import conversions, dense, feedback, values
from fewbits.kernels.arrays import lent as kernels
from fewbits.kernels.arrays import top_k as selection
from fewbits.kernels.bits.layout import layout
from fewbits.kernels.bits.options import Choices, Options, decide, read_format
from fewbits.kernels.ops import by_triton
from fewbits.kernels.ops.backends import is_native
from fewbits.kernels.ops.tensors import are_lent, array, is_lent, lent, lent_parts, packed

_VALUES = (torch.float32, torch.bfloat16, torch.float16)
_NAMES = tuple(f"pieces[{i}]" for i in range(4))
_PIECES = (torch.uint8, torch.uint8, torch.uint8, torch.float32)

Pieces = Sequence[torch.Tensor | None]
"""Codes, scales, shifts and outer scales of a flat NarrowTensor; None for those that the format lacks."""

P = ParamSpec("P")
R = TypeVar("R")


def _seen(function: Callable[P, R]) -> Callable[P, R]:
    """Return a function that a profiler sees by its name, as it sees the operators."""

    @wraps(function)
    def called(*args: P.args, **kwargs: P.kwargs) -> R:
        if not torch.autograd._profiler_enabled():  # type: ignore[attr-defined]  # imported there, not exported
            return function(*args, **kwargs)
        with torch.autograd.profiler.record_function(f"fewbits::{function.__name__}"):
            return function(*args, **kwargs)

    return called


def empty_kept(n: int, dtype: torch.dtype) -> torch.Tensor:
    """Return an uninitialized tensor, (n,), in memory that waits for the next one when nobody holds it.

    New pages of large tensors take longer than the work on them. Such a tensor cannot be resized in place.

    """
    return torch.from_numpy(dense.empty((n * dtype.itemsize,), "uint8")).view(dtype)


def largest_finite(x: torch.Tensor) -> tuple[float, bool]:
    """Return the largest finite magnitude of ``x``, and whether all of it is finite, in one pass.

    On another device than the CPU the host waits for these two numbers.

    Args:
        x: (n,), float32, bfloat16 or float16, contiguous.

    Raises:
        ArgumentError: x is not such a tensor.
        DTypeError: x has another dtype.
    """
    _check("x", x, _VALUES)
    if not is_native(x):
        with exact_arithmetic():
            largest, is_finite = portable.largest_finite(x)
            found = torch.stack((largest.float(), is_finite.float())).cpu().tolist()
        return found[0], bool(found[1])
    return values.largest_finite(array(x)) if x.numel() else (0.0, True)


@_seen
def quantize_flat(x: torch.Tensor, format: str | Format, choices: Choices, seed: int, pieces: Pieces) -> None:
    """Write the parts of ``x`` to ``pieces``, as :func:`fewbits.quantize` makes them with the same choices.

    Args:
        x: (n,), float32, bfloat16 or float16, contiguous.
        format: name, text in the grammar, or Format.
        choices: how to round.
        seed: of stochastic rounding.
        pieces: those of a NarrowTensor of shape (n,) in the format, contiguous; overwritten.

    Raises:
        ArgumentError: a tensor is not as said, or a choice is none of the format's.
        DataError: x holds NaN or infinity and ``nonfinite="raise"``.
        DTypeError: a tensor has another dtype.
        FormatError: the text is not a format.
    """
    target = parse(format)
    _check("x", x, _VALUES)
    n, chosen = x.numel(), decide(target, choices, seed)
    _check_pieces(pieces, target, n, x.device)
    if not is_native(x):
        _write(_quantized(x.detach(), target, chosen), pieces)
        return
    planned = kernels.plan(target.grammar, chosen.text, (n,), None, 0)
    decides = planned is not None and kernels.decided_by_infinity(planned)
    if planned is None or decides or not (is_lent(x) and are_lent(pieces)):
        conversions.quantize(array(x), target, 0, chosen, out=packed(pieces))
    elif kernels.quantize(planned, lent(x), lent_parts(pieces), seed, None):
        conversions.refuse(array(x), target, planned.nonfinite)


@_seen
def dequantize_flat(pieces: Pieces, format: str | Format, out: torch.Tensor) -> None:
    """Write the values of a packed tensor to ``out``.

    Args:
        pieces: those of a NarrowTensor of out's shape in the format, contiguous.
        format: name, text in the grammar, or Format.
        out: (n,), float32, bfloat16 or float16, contiguous.

    Raises:
        ArgumentError: a tensor is not as said.
        DTypeError: a tensor has another dtype.
        FormatError: the text is not a format.
    """
    target = parse(format)
    _check("out", out, _VALUES)
    _check_pieces(pieces, target, out.numel(), out.device)
    if not is_native(out):
        out.detach().copy_(_dense(pieces, target, out.numel(), out.dtype))
    elif not _dequantized(pieces, target, out, add=False):
        place = array(out)
        conversions.dequantize(packed(pieces), target, place.shape, 0, place.dtype, out=place)


@_seen
def top_k(x: torch.Tensor, k: int) -> torch.Tensor:
    """Return the indices of the ``k`` values of largest magnitude, int64 (k,), in rising order.

    Magnitudes are compared by their bits without the sign: NaN is above infinity, and both zeros are equal.
    Of equal magnitudes the first ones count as larger; ``torch.topk`` leaves open which of them it takes.

    Args:
        x: (n,), float32, bfloat16 or float16, contiguous; n below 2^31.
        k: 0 to n.

    Raises:
        ArgumentError: x is not such a tensor, or k is not from 0 to n.
        DTypeError: x has another dtype.
    """
    _check("x", x, _VALUES)
    if not is_native(x):
        selection.check_count(k, x.numel())
        found = by_triton.top_k(x, k)
        return portable.top_k(x.detach().resolve_neg(), k) if found is None else found
    return torch.from_numpy(selection.top_k(array(x), k))


@_seen
def dequantize_add(pieces: Pieces, format: str | Format, n: int, into: torch.Tensor) -> None:
    """Add the ``n`` values of a packed tensor to ``into`` in one pass, each sum rounded to float32 once.

    Args:
        pieces: those of a NarrowTensor of shape (n,) in the format, contiguous.
        format: name, text in the grammar, or Format.
        n: how many values.
        into: (n,) float32, contiguous.

    Raises:
        ArgumentError: a tensor is not as said.
        DTypeError: a tensor has another dtype.
        FormatError: the text is not a format.
    """
    target = parse(format)
    _check("into", into, (torch.float32,), n)
    _check_pieces(pieces, target, n, into.device)
    if by_triton.takes(into, target):
        by_triton.dequantize_add(tuple(pieces), target, into)
    elif not is_native(into):
        with exact_arithmetic():
            into.detach().add_(_dense(pieces, target, n, torch.float32))
    elif not _dequantized(pieces, target, into, add=True):
        feedback.dequantize_add(packed(pieces), target, array(into))


@_seen
def quantize_with_feedback(
    x: torch.Tensor,
    residual: torch.Tensor,
    format: str | Format,
    choices: Choices,
    seed: int,
    pieces: Pieces,
) -> None:
    """Round ``x`` and what earlier roundings left over, and keep what this one leaves over, in one pass.

    The parts of ``v = x.float() + residual`` are written to ``pieces``, as :func:`fewbits.quantize` makes
    them with the same choices, and ``v`` minus their values to ``residual``: zero where that is not finite.

    Args:
        x: (n,), float32, bfloat16 or float16, contiguous.
        residual: (n,) float32, contiguous; overwritten.
        format: name, text in the grammar, or Format.
        choices: how to round.
        seed: of stochastic rounding.
        pieces: those of a NarrowTensor of shape (n,) in the format, contiguous; overwritten.

    Raises:
        ArgumentError: a tensor is not as said, or a choice is none of the format's.
        DataError: a sum is NaN or infinite and ``nonfinite="raise"``; ``residual`` is then as it was.
        DTypeError: a tensor has another dtype.
        FormatError: the text is not a format.
    """
    target = parse(format)
    _check("x", x, _VALUES)
    _check("residual", residual, (torch.float32,), x.numel(), x.device)
    _check_pieces(pieces, target, x.numel(), x.device)
    chosen = decide(target, choices, seed)
    # Refused before the residual is lost: only a pass of its own knows in time.
    if chosen.nonfinite != "raise" and by_triton.takes(x, target, chosen):
        by_triton.quantize_with_feedback(x, residual, target, chosen, tuple(pieces))
        return
    if not is_native(x):
        with exact_arithmetic():
            v = x.detach().float() + residual.detach()
            _write(_quantized(v, target, chosen), pieces)
            left = v - _dense(pieces, target, v.numel(), torch.float32)
        residual.detach().copy_(torch.where(left.isfinite(), left, 0))
        return
    feedback.quantize_with_feedback(array(x), array(residual), target, chosen, packed(pieces))


def _dequantized(pieces: Pieces, format: Format, out: torch.Tensor, *, add: bool) -> bool:
    """Write or add values where a compiled kernel reads the pieces as they lie; return whether one did."""
    lends = is_lent(out) and are_lent(pieces)
    parts = lent_parts(pieces) if lends else ()
    return lends and kernels.dequantize(parts, lent(out), format.grammar, tuple(out.shape), 0, add=add)


@lru_cache(maxsize=1024)
def _shapes(format: str, n: int) -> tuple[tuple[int, ...] | None, ...]:
    return layout(read_format(format), (n,), 0)


def _quantized(x: torch.Tensor, format: Format, chosen: Options) -> list[torch.Tensor]:
    parts: list[torch.Tensor] = torch.ops.fewbits.quantize(
        x, 0, format.grammar, chosen.text, chosen.seed, None
    )
    return parts


def _dense(pieces: Pieces, format: Format, n: int, dtype: torch.dtype) -> torch.Tensor:
    y: torch.Tensor = torch.ops.fewbits.dequantize(*pieces, format.grammar, [n], 0, dtype)
    return y


def _write(parts: Sequence[torch.Tensor], pieces: Pieces) -> None:
    """Copy the parts that a format has into the pieces that are there."""
    for part, piece in zip(parts, (piece for piece in pieces if piece is not None), strict=True):
        piece.copy_(part)


def _check_pieces(pieces: Pieces, format: Format, n: int, device: torch.device) -> None:
    """Raise an error unless pieces are those of ``n`` values on ``device``."""
    shapes = _shapes(format.grammar, n)
    if [piece is None for piece in pieces] != [shape is None for shape in shapes]:
        raise ArgumentError(
            f"pieces are {[None if p is None else tuple(p.shape) for p in pieces]}; {n} values of {format}"
            f" have {list(shapes)}: take those of a NarrowTensor"
        )
    for name, piece, shape, dtype in zip(_NAMES, pieces, shapes, _PIECES, strict=True):
        if piece is not None and shape is not None:
            _check(name, piece, (dtype,), shape[0], device)


def _check(
    name: str,
    x: torch.Tensor,
    dtypes: tuple[torch.dtype, ...],
    n: int | None = None,
    device: torch.device | None = None,
) -> None:
    """Raise an error unless ``x`` is flat, its values side by side, and where the others are."""
    if x.dtype not in dtypes:
        expected = " or ".join(str(dtype) for dtype in dtypes)
        raise DTypeError(f"{name} is a tensor of {x.dtype}; expected {expected}")
    if x.layout != torch.strided or x.dim() != 1 or not x.is_contiguous():
        dense = "contiguous" if x.layout == torch.strided else "to_dense"
        raise ArgumentError(
            f"{name} is a {x.layout} tensor of shape {tuple(x.shape)}; expected a flat one whose values lie"
            f" side by side: {name}.{dense}().flatten()"
        )
    if device is not None and x.device != device:
        raise ArgumentError(f"{name} is on {x.device}; expected {device}, where the rest is: {name}.to(...)")
    if n is not None and x.numel() != n:
        raise ArgumentError(f"{name} has {x.numel()} items; expected {n}")
