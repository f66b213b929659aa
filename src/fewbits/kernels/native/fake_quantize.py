"""Fake quantization by the compiled kernel: one pass over memory."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fewbits import _native
from fewbits.formats import Bdr, Block, Exponent, Fixed, Float, Format
from fewbits.kernels import reference
from fewbits.kernels.native.isa import active_isa
from fewbits.kernels.options import Options

_RULES = {
    "floor": _native.ScaleRule.floor,
    "ceil": _native.ScaleRule.ceil,
    "rceil": _native.ScaleRule.rceil,
    "even": _native.ScaleRule.even,
    "1.75": _native.ScaleRule.one_seventy_five,
    "midmax": _native.ScaleRule.midmax,
    "oas": _native.ScaleRule.oas,
    "double-floor": _native.ScaleRule.double_floor,
}

# Scalars have no blocks; the work is divided in pieces of this many values.
_PIECE = 4096


class Result(NamedTuple):
    """What a call returned, and the instruction set that computed it."""

    values: NDArray[np.float32]
    isa: str


def supports(fmt: Format, options: Options, dtype: Any) -> bool:
    """Return whether the compiled kernel computes this case.

    It rounds float32 to nearest even, to float and fixed-point elements of at most 23 significant bits:
    alone, in blocks with a power-of-two scale, or in BDR blocks.
    """
    if np.dtype(dtype) != np.float32 or options.rounding != "nearest_even":
        return False
    if isinstance(fmt, Bdr):
        return options.nonfinite in ("block-nan", "raise")
    if isinstance(fmt, Block):
        return (
            isinstance(fmt.scale, Exponent)
            and isinstance(fmt.size, int)
            and options.nonfinite in ("block-nan", "raise")
            and options.overflow == "saturate"
            and isinstance(fmt.element, Float | Fixed)
            and _fits(fmt.element)
            # An element this large or fine could leave float32 before its scale brings it back.
            and fmt.element.emax <= 100
            and _emin(fmt.element) - fmt.element.mantissa_bits >= -100
        )
    return isinstance(fmt, Float | Fixed) and options.nonfinite in ("element", "raise") and _fits(fmt)


def fake_quantize(
    x: NDArray[np.float32], fmt: Format, options: Options, *, threads: int = 1
) -> NDArray[np.float32]:
    """Return ``x`` rounded to ``fmt``.

    Args:
        x: (..., n), float32, blocks along the last axis.
        fmt: a format that :func:`supports` accepts with these options.
        options: from :func:`fewbits.kernels.options.options`.
        threads: most threads to use; small arrays use one.

    Raises:
        ArgumentError: ``FEWBITS_ISA`` names an instruction set that cannot run.
        DataError: x holds NaN or infinity and ``options.nonfinite`` is ``raise``.
    """
    return run(x, fmt, options, threads=threads).values


def run(x: NDArray[np.float32], fmt: Format, options: Options, *, threads: int = 1) -> Result:
    """Do what :func:`fake_quantize` does, and say which instruction set did it."""
    active_isa()  # refuses a wrong FEWBITS_ISA with a message for people
    n = x.shape[-1] if x.ndim else 1
    shape = (1, -1) if isinstance(fmt, Float | Fixed) else (-1, n or 1)  # scalars have no rows to keep apart
    rows = np.ascontiguousarray(x, np.float32).reshape(shape)
    out = np.empty_like(rows)
    isa, nonfinite = _native.fake_quantize(rows, out, _parameters(fmt, options), threads)
    if nonfinite and options.nonfinite == "raise":
        reference.quantize(np.atleast_1d(x), fmt, options)  # raises: the message has one home
    return Result(out.reshape(x.shape), isa)


def _fits(element: Float | Fixed) -> bool:
    return element.mantissa_bits <= 22 and -126 <= _emin(element) <= 100


def _emin(element: Float | Fixed) -> int:
    # The steps of fixed point are even: all values lie in or below the top binade.
    return element.emin if isinstance(element, Float) else element.emax


def _parameters(fmt: Format, options: Options) -> _native.FakeQuantize:
    p = _native.FakeQuantize()
    p.kind, p.block, p.sub_block, p.largest_shift = _native.Kind.scalar, _PIECE, 1, 0
    p.scale_emin, p.scale_emax, p.scale_rule = 0, 0, _native.ScaleRule.floor
    if isinstance(fmt, Block | Bdr):
        assert isinstance(fmt.scale, Exponent)
        assert isinstance(fmt.size, int)
        p.kind, p.block = _native.Kind.block, fmt.size
        p.scale_emin, p.scale_emax, p.scale_rule = fmt.scale.emin, fmt.scale.emax, _RULES[options.scale_rule]
    if isinstance(fmt, Bdr):
        p.kind, p.sub_block, p.largest_shift = _native.Kind.bdr, fmt.k2, fmt.largest_shift
    element = fmt.element if isinstance(fmt, Block | Bdr) else fmt
    assert isinstance(element, Float | Fixed)
    m = element.mantissa_bits
    p.mantissa_bits, p.emin, p.emax = m, _emin(element), element.emax
    p.max, p.min = element.max, abs(element.min)  # a magnitude; the most negative value may be -0.0
    p.signed_zero = element.signed_zero
    p.saturate = options.overflow == "saturate"
    p.overflow = float("nan") if options.overflow == "nan" else float("inf")
    p.oas_factor = 2 * (2 - 2.0**-m) / (2 - 2.0 ** -(m + 1))
    return p
