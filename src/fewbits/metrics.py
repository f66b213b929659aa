"""How far a rounded array is from the original, and bounds on it that hold without measuring."""

from __future__ import annotations

from dataclasses import dataclass
from math import frexp, inf, isnan, log10, nan
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from fewbits import kernels
from fewbits.errors import ArgumentError
from fewbits.formats import Bdr, Format, parse
from fewbits.kernels.bits.axes import checked_axis
from fewbits.records import Error
from fewbits.tensor.arrays import is_narrow, is_torch, opened, widened
from fewbits.tensor.inputs import check_values
from fewbits.typing import AnyArray

if TYPE_CHECKING:
    import torch

__all__ = ["measure", "qsnr", "qsnr_lower_bound"]

_DECIBELS_OF_TWO = 20 * log10(2)
_LEAST = 2.0**-900  # a sum of squares below this may have lost some

Reals = NDArray[np.floating]


@dataclass
class Tally:
    """Sums over pieces of an array, from which its :class:`fewbits.records.Error` follows."""

    signal: float = 0.0
    noise: float = 0.0
    count: int = 0
    nonzero: int = 0
    flushed: int = 0
    saturated: int = 0
    relative: float = 0.0
    largest_relative: float = 0.0

    def add(self, x: Reals, y: Reals, limit: float | Reals = inf) -> None:
        """Count a piece: originals, rounded values, and the largest magnitudes that could be kept.

        NaN and infinities of ``x`` count as values, but not in the sums.
        """
        self.include(kernels.tally_values(x, y, limit), x.size)

    def include(self, sums: kernels.ErrorSums, count: int) -> None:
        """Count a piece of ``count`` values by the sums of its errors."""
        self.count += count
        self.signal += sums.signal
        self.noise += sums.noise
        self.nonzero += sums.nonzero
        self.flushed += sums.flushed
        self.saturated += sums.saturated
        self.relative += sums.relative
        self.largest_relative = max(self.largest_relative, sums.largest_relative)

    def add_all(self, others: Tally) -> None:
        """Count the values of another array too."""
        for name in ("signal", "noise", "count", "nonzero", "flushed", "saturated", "relative"):
            setattr(self, name, getattr(self, name) + getattr(others, name))
        self.largest_relative = max(self.largest_relative, others.largest_relative)

    def error(self) -> Error:
        """Return what the pieces say together."""
        # Where squares of all values underflow, formats flush them, and where they leave the range, formats
        # saturate, unless infinities say that they overflow: what was signal is noise.
        lost = self.flushed if self.signal == 0 else self.signal == inf and self.largest_relative < inf
        return Error(
            qsnr_db=0.0 if lost else _decibels(self.signal, self.noise),
            max_relative_error=nan if isnan(self.relative) else self.largest_relative,
            mean_relative_error=self.relative / max(self.nonzero, 1),
            saturated_fraction=self.saturated / max(self.count, 1),
            flushed_fraction=self.flushed / max(self.count, 1),
        )


def _decibels(signal: float, noise: float) -> float:
    if noise == 0:
        return inf
    return 10 * log10(signal / noise) if signal > 0 and noise < inf else -inf


@kernels.exact_arithmetic()
def qsnr(x: AnyArray, y: AnyArray) -> float:
    """Return the quantization signal-to-noise ratio, -10 log10(|y - x|^2 / |x|^2), in decibels.

    Args:
        x: the original, a numpy.ndarray or torch.Tensor of any shape.
        y: the rounded values in the same shape, also in a float8 dtype of torch, or the NarrowTensor that
            holds them.

    Returns:
        Decibels; infinity where nothing changed, minus infinity where x or y holds NaN or infinity. (With
        Shared Microexponents, section 4.1.)

    Raises:
        ArgumentError: the shapes or devices differ, or the device is meta.
        DTypeError: x or y is no dense array or tensor of floating-point numbers.
    """
    if is_torch(y):
        if is_narrow(y):
            y = y.dequantize()
        elif str(y.dtype).startswith("torch.float8"):
            y = y.float()  # torch's own cast, to be measured
    if is_torch(x) and is_torch(y) and not (x.is_cpu and y.is_cpu):
        return _qsnr_of_tensors(x.detach(), y.detach())
    a, b = widened(x), widened(y)
    if a.shape != b.shape:
        raise ArgumentError(f"qsnr of shapes {a.shape} and {b.shape}; expected the same shape twice")
    with np.errstate(over="ignore", invalid="ignore"):
        a, b = a.astype(np.float64), b.astype(np.float64)
        (signal, up), (noise, down) = _squares(a), _squares(b - a)
        if not noise < inf:  # perhaps only because a difference leaves the range
            noise, down = _squares(b / 2 - a / 2)
            down += 1
    return _decibels(signal, noise) + (up - down) * _DECIBELS_OF_TWO


def _squares(v: Reals) -> tuple[float, int]:
    """Return the sum of squares of float64 divided by 4^e, and e: 0 unless the sum leaves the range."""
    total = float(np.square(v).sum())
    if _LEAST < total < inf or (total == 0 and not v.any()):
        return total, 0
    exponent = frexp(max(float(v.max()), -float(v.min())))[1]
    return float(np.square(np.ldexp(v, -exponent)).sum()), exponent


def _qsnr_of_tensors(x: torch.Tensor, y: torch.Tensor) -> float:
    """Return :func:`qsnr` of tensors on another device than the CPU: the host waits for two of their sums."""
    if x.shape != y.shape:
        raise ArgumentError(
            f"qsnr of shapes {tuple(x.shape)} and {tuple(y.shape)}; expected the same shape twice"
        )
    check_values(x)
    check_values(y)
    if x.device != y.device:
        raise ArgumentError(f"qsnr of tensors on {x.device} and {y.device}; put them on one device")
    _refuse_meta(x)
    a, b = x.double(), y.double()
    (signal, up), (noise, down) = _squares_there(a), _squares_there(b - a)
    if not noise < inf:
        noise, down = _squares_there(b / 2 - a / 2)
        down += 1
    return _decibels(signal, noise) + (up - down) * _DECIBELS_OF_TWO


def _squares_there(v: torch.Tensor) -> tuple[float, int]:
    """Return :func:`_squares` of a tensor where it lies."""
    total = float(v.square().sum())
    if _LEAST < total < inf or not v.numel():
        return total, 0
    exponent = frexp(float(v.abs().amax()))[1]
    half = exponent // 2  # 2^-e itself may be no number
    return float((v * 2.0**-half * 2.0 ** (half - exponent)).square().sum()), exponent


def _refuse_meta(x: torch.Tensor) -> None:
    if x.is_meta:
        raise ArgumentError(
            f"a tensor of shape {tuple(x.shape)} on the meta device, which holds no values; load them first"
        )


@kernels.exact_arithmetic()
def measure(
    x: AnyArray,
    format: str | Format,
    *,
    axis: int = -1,
    scale_rule: str = "floor",
    nonfinite: str | None = None,
) -> Error:
    """Round an array to a format, nearest even, and return what that did to its values.

    Values of 16 bits are compared with what they become in float32, before that is rounded to their dtype.

    Args:
        x: a numpy.ndarray or torch.Tensor of floating-point numbers, of any shape.
        format: a format or its text.
        axis: along which blocks lie.
        scale_rule: how a power-of-two scale is chosen, one of the names in docs/rules.md.
        nonfinite: what NaN and infinity in x become; the format's own default unless given. They do not count
            in the sums.

    Raises:
        FormatError: no such format.
        ArgumentError: an axis that x does not have, a choice that the format cannot follow, or a tensor on
            the meta device.
        DTypeError: x is no dense array or tensor of floating-point numbers.
        DataError: x holds NaN or infinity, which the format cannot hold.
    """
    target = parse(format)
    chosen = kernels.options(target, scale_rule=scale_rule, nonfinite=nonfinite)
    tally = Tally()
    if is_torch(x) and not x.is_cpu:
        from fewbits.kernels import ops  # needs torch

        check_values(x)
        _refuse_meta(x)
        tally.include(ops.tally(x, target, checked_axis(axis, x.ndim), chosen), x.numel())
        return tally.error()
    array, _ = opened(x)  # in its own dtype, whose largest value infinity may be read as
    front = checked_axis(axis, array.ndim)
    tally.include(kernels.tally(array, target, front, chosen), array.size)
    return tally.error()


def qsnr_lower_bound(format: Bdr, n: int) -> float:
    """Return the QSNR in decibels that no vector of ``n`` values can fall below in a BDR format.

    6.02 m + 10 log10(2^(2 beta) / (min(n, k1) + (2^(2 beta) - 1) k2)), beta = 2^d2 - 1 (With Shared
    Microexponents, theorem 1). It holds while the shared exponent is inside the scale's range.
    """
    power = 4.0**format.largest_shift
    smallest = min(n, format.k1) + (power - 1) * format.k2
    return 20 * log10(2) * format.m + 10 * log10(power / smallest)
