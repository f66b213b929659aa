"""Operations on flat tensors on the CPU, as processes exchange them; nothing differentiates them."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from fewbits.errors import ArgumentError, DTypeError
from fewbits.formats import Format, parse
from fewbits.kernels.arrays import feedback
from fewbits.kernels.arrays import top_k as selection
from fewbits.kernels.bits.layout import Packed, layout
from fewbits.kernels.bits.options import Choices, decide
from fewbits.kernels.ops.tensors import array, packed

_VALUES = (torch.float32, torch.bfloat16, torch.float16)
_PIECES = (torch.uint8, torch.uint8, torch.uint8, torch.float32)

Pieces = Sequence[torch.Tensor | None]
"""Codes, scales, shifts and outer scales of a flat NarrowTensor; None for those that the format lacks."""


def top_k(x: torch.Tensor, k: int) -> torch.Tensor:
    """Return the indices of the ``k`` values of largest magnitude, int64 (k,), in rising order.

    Magnitudes are compared by their bits without the sign: NaN is above infinity, and both zeros are equal.
    Of equal magnitudes the first ones count as larger; ``torch.topk`` leaves open which of them it takes.

    Args:
        x: (n,), float32, bfloat16 or float16, contiguous, on the CPU; n below 2^31.
        k: 0 to n.

    Raises:
        ArgumentError: x is not such a tensor, or k is not from 0 to n.
        DTypeError: x has another dtype.
    """
    _check("x", x, _VALUES)
    return torch.from_numpy(selection.top_k(array(x), k))


def dequantize_add(pieces: Pieces, format: str | Format, n: int, into: torch.Tensor) -> None:
    """Add the ``n`` values of a packed tensor to ``into`` in one pass, each sum rounded to float32 once.

    Args:
        pieces: those of a NarrowTensor of shape (n,) in the format, contiguous, on the CPU.
        format: name, text in the grammar, or Format.
        n: how many values.
        into: (n,) float32, contiguous, on the CPU.

    Raises:
        ArgumentError: a tensor is not as said.
        DTypeError: a tensor has another dtype.
        FormatError: the text is not a format.
    """
    target = parse(format)
    _check("into", into, (torch.float32,), n)
    feedback.dequantize_add(_packed(pieces, target, n), target, array(into))


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
        x: (n,), float32, bfloat16 or float16, contiguous, on the CPU.
        residual: (n,) float32, contiguous, on the CPU; overwritten.
        format: name, text in the grammar, or Format.
        choices: how to round.
        seed: of stochastic rounding.
        pieces: those of a NarrowTensor of shape (n,) in the format, contiguous, on the CPU; overwritten.

    Raises:
        ArgumentError: a tensor is not as said, or a choice is none of the format's.
        DataError: a sum is NaN or infinite and ``nonfinite="raise"``; ``residual`` is then as it was.
        DTypeError: a tensor has another dtype.
        FormatError: the text is not a format.
    """
    target = parse(format)
    _check("x", x, _VALUES)
    _check("residual", residual, (torch.float32,), x.numel())
    chosen, parts = decide(target, choices, seed), _packed(pieces, target, x.numel())
    feedback.quantize_with_feedback(array(x), array(residual), target, chosen, parts)


def _packed(pieces: Pieces, format: Format, n: int) -> Packed:
    """Return pieces as arrays that share their memory, checked to be those of ``n`` values."""
    shapes = layout(format, (n,), 0)
    names = [f"pieces[{i}]" for i in range(len(shapes))]
    if [piece is None for piece in pieces] != [shape is None for shape in shapes]:
        raise ArgumentError(
            f"pieces are {[None if p is None else tuple(p.shape) for p in pieces]}; {n} values of {format}"
            f" have {list(shapes)}: take those of a NarrowTensor"
        )
    for name, piece, shape, dtype in zip(names, pieces, shapes, _PIECES, strict=True):
        if piece is not None and shape is not None:
            _check(name, piece, (dtype,), shape[0])
    return packed(pieces)


def _check(name: str, x: torch.Tensor, dtypes: tuple[torch.dtype, ...], n: int | None = None) -> None:
    """Raise an error unless ``x`` is flat and on the CPU, its values side by side."""
    if x.dtype not in dtypes:
        expected = " or ".join(str(dtype) for dtype in dtypes)
        raise DTypeError(f"{name} is a tensor of {x.dtype}; expected {expected}")
    if x.device.type != "cpu" or x.layout != torch.strided or x.dim() != 1 or not x.is_contiguous():
        raise ArgumentError(
            f"{name} is a {x.layout} tensor of shape {tuple(x.shape)} on {x.device}; expected a flat one on"
            f" the CPU whose values lie side by side: {name}.cpu().flatten()"
        )
    if n is not None and x.numel() != n:
        raise ArgumentError(f"{name} has {x.numel()} items; expected {n}")
