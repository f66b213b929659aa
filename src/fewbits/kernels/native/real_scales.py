"""Fake quantization with real scales: the definition chooses them, the compiled kernel rounds."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fewbits.formats import Block, Exponent, Format
from fewbits.kernels import reference
from fewbits.kernels.native.fake_quantize import fake_quantize, supports
from fewbits.kernels.options import Options
from fewbits.kernels.reference import Parts


def supports_real_scale(fmt: Format, options: Options, dtype: Any) -> bool:
    """Return whether the format has a real scale and the compiled kernel rounds its element."""
    return (
        isinstance(fmt, Block)
        and not isinstance(fmt.scale, Exponent)
        and options.overflow == "saturate"
        and supports(fmt.element, _of_element(options), dtype)
    )


def fake_quantize_real_scale(
    x: NDArray[np.float32], fmt: Format, options: Options, amax: float | None = None, *, threads: int = 1
) -> NDArray[np.float32]:
    """Return ``x`` rounded to ``fmt``; arguments and errors are those of :func:`reference.quantize`.

    The quotient by the scale is a float32 and rounds as a scalar does; the product with the scale is exact in
    float64 and rounds once.
    """
    assert isinstance(fmt, Block)
    x = reference.without_nonfinite(x, fmt, options)
    scales, quotient = reference.scaled(x, fmt, options, amax)
    rounded = fake_quantize(quotient.astype(np.float32), fmt.element, _of_element(options), threads=threads)
    whole = Parts(np.empty(x.shape, np.uint8), scales.scales, None, scales.outer)
    with np.errstate(over="ignore", invalid="ignore"):
        return (rounded * reference.multiplier(whole, fmt)).astype(np.float32)


def _of_element(options: Options) -> Options:
    """Return the options of the scalar cast: what is not finite is dealt with, or makes its block NaN."""
    return replace(options, scale_rule="floor", nonfinite="element")
