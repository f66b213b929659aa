"""From codes and scales to numbers: the definition.

Decoding multiplies in float64, which is exact, and rounds once, to the output dtype; a product beyond the
output dtype becomes infinity as in any conversion (OCP MX v1.0, section 5.1, leaves it to the
implementation).
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from fewbits.formats import Format, decode
from fewbits.kernels.bits.layout import Parts
from fewbits.kernels.reference.values.blocks import spread

Array = NDArray[Any]
Reals = NDArray[np.float64]


def dequantize(parts: Parts, format: Format, dtype: Any = np.float32) -> Array:
    """Return the values of ``parts``, of the codes' shape, each rounded once to ``dtype``."""
    with np.errstate(over="ignore", invalid="ignore"):
        values = decode(format.element, parts.codes)
        return (values if parts.scales is None else values * multiplier(parts, format)).astype(dtype)


def multiplier(parts: Parts, format: Format) -> Reals:
    """Return what each element of a format with scales is multiplied by, broadcastable to the codes."""
    _, scales, shifts, _ = format.groups
    assert scales is not None
    assert parts.scales is not None
    shape = parts.codes.shape
    total = spread(decode(scales.element, parts.scales), scales.size, shape)
    if shifts is not None and parts.shifts is not None:
        total = np.ldexp(total, -spread(parts.shifts.astype(np.int64), shifts.size, shape))
    return total * parts.outer.astype(np.float64) if parts.outer is not None else total
