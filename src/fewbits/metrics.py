"""How far a rounded array is from the original, and bounds on it that hold without measuring."""

from __future__ import annotations

from dataclasses import dataclass
from math import inf, log10

import numpy as np
from numpy.typing import NDArray

from fewbits import kernels
from fewbits.errors import ArgumentError
from fewbits.formats import Bdr, Format, parse
from fewbits.records import Error
from fewbits.tensor.arrays import checked_axis, is_narrow, is_torch, widened
from fewbits.typing import AnyArray

__all__ = ["measure", "qsnr", "qsnr_lower_bound"]

Reals = NDArray[np.floating]

_CACHED = 1 << 15  # values whose float64 temporaries stay in the second-level cache


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

    @kernels.exact_arithmetic()
    def add(self, x: Reals, y: Reals, limit: float | Reals = inf) -> None:
        """Count a piece: originals, rounded values, and the largest magnitudes that could be kept.

        NaN and infinities of ``x`` count as values, but not in the sums.
        """
        rows = len(x) if x.ndim > 1 else 1
        step = max(1, _CACHED * rows // max(x.size, 1))
        if step < rows:
            limits = np.broadcast_to(limit, x.shape)
            for start in range(0, rows, step):
                self.add(x[start : start + step], y[start : start + step], limits[start : start + step])
            return
        finite = np.isfinite(x)
        all_finite = bool(finite.all())
        wide = (x if all_finite else np.where(finite, x, 0)).astype(np.float64)
        magnitude = np.abs(wide)
        error = np.abs((y if all_finite else np.where(finite, y, 0)) - wide)
        # Not a dot product: BLAS would start threads, which wait on a busy machine for longer than they work.
        with np.errstate(over="ignore"):  # float64 values beyond 1e154 have infinite power
            self.signal += float(np.square(magnitude).sum())
            self.noise += float(np.square(error).sum())
        self.count += wide.size
        nonzero = magnitude > 0
        self.nonzero += int(np.count_nonzero(nonzero))
        self.flushed += int(np.count_nonzero(nonzero & (y == 0)))
        # A real scale is rounded to float32, so the block's own largest value may lie an ulp beyond the
        # limit.
        self.saturated += int(np.count_nonzero(magnitude * (1 - 2.0**-20) > limit))
        with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
            relative = np.where(nonzero, error / magnitude, 0)
        self.relative += float(relative.sum())
        self.largest_relative = max(self.largest_relative, float(relative.max(initial=0)))

    def error(self) -> Error:
        """Return what the pieces say together."""
        return Error(
            qsnr_db=_decibels(self.signal, self.noise),
            max_relative_error=self.largest_relative,
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
        Decibels; infinity where nothing changed. (With Shared Microexponents, section 4.1.)

    Raises:
        ArgumentError: the shapes differ.
        DTypeError: x or y is no dense array or tensor of floating-point numbers.
    """
    if is_torch(y):
        if is_narrow(y):
            y = y.dequantize()
        elif str(y.dtype).startswith("torch.float8"):
            y = y.float()  # torch's own cast, to be measured
    a, b = widened(x), widened(y)
    if a.shape != b.shape:
        raise ArgumentError(f"qsnr of shapes {a.shape} and {b.shape}; expected the same shape twice")
    difference = b.astype(np.float64) - a
    wide = a.astype(np.float64)
    with np.errstate(over="ignore"):
        return _decibels(float(np.square(wide).sum()), float(np.square(difference).sum()))


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

    Args:
        x: a numpy.ndarray or torch.Tensor of floating-point numbers, of any shape.
        format: a format or its text.
        axis: along which blocks lie.
        scale_rule: how a power-of-two scale is chosen, one of the names in docs/rules.md.
        nonfinite: what NaN and infinity in x become; the format's own default unless given. They do not count
            in the sums.

    Raises:
        FormatError: no such format.
        ArgumentError: an axis that x does not have, or a choice that the format cannot follow.
        DTypeError: x is no dense array or tensor of floating-point numbers.
        DataError: x holds NaN or infinity, which the format cannot hold.
    """
    target = parse(format)
    array = widened(x)
    front = checked_axis(axis, array.ndim)
    chosen = kernels.options(target, scale_rule=scale_rule, nonfinite=nonfinite)
    tally = Tally()
    rounded = kernels.fake_quantize(array, target, front, chosen)
    tally.add(array, rounded, kernels.limits(array, target, front, chosen))
    return tally.error()


def qsnr_lower_bound(format: Bdr, n: int) -> float:
    """Return the QSNR in decibels that no vector of ``n`` values can fall below in a BDR format.

    6.02 m + 10 log10(2^(2 beta) / (min(n, k1) + (2^(2 beta) - 1) k2)), beta = 2^d2 - 1 (With Shared
    Microexponents, theorem 1). It holds while the shared exponent is inside the scale's range.
    """
    power = 4.0**format.largest_shift
    smallest = min(n, format.k1) + (power - 1) * format.k2
    return 20 * log10(2) * format.m + 10 * log10(power / smallest)
