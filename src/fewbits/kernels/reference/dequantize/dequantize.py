"""From codes and scales to numbers: the definition.

Decoding multiplies in float64, which is exact, and rounds once, to the output dtype; a product beyond the
output dtype becomes infinity as in any conversion (OCP MX v1.0, section 5.1, leaves it to the
implementation).
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from fewbits.formats import Bdr, Block, Element, Format, decode
from fewbits.kernels.bits.layout import Parts
from fewbits.kernels.reference.values.blocks import spread

Array = NDArray[Any]
Reals = NDArray[np.float64]


def dequantize(parts: Parts, fmt: Format, dtype: Any = np.float32) -> Array:
    """Return the values of ``parts``, of the codes' shape, each rounded once to ``dtype``."""
    with np.errstate(over="ignore", invalid="ignore"):
        if isinstance(fmt, Element):
            return decode(fmt, parts.codes).astype(dtype)
        assert isinstance(fmt, Block | Bdr)
        return (decode(fmt.element, parts.codes) * multiplier(parts, fmt)).astype(dtype)


def multiplier(parts: Parts, fmt: Block | Bdr) -> Reals:
    """Return what each element is multiplied by, broadcastable to the codes."""
    assert parts.scales is not None
    shape = parts.codes.shape
    total = spread(decode(fmt.scale, parts.scales), fmt.size, shape)
    if parts.shifts is not None:
        assert isinstance(fmt, Bdr)
        total = np.ldexp(total, -spread(parts.shifts.astype(np.int64), fmt.k2, shape))
    return total * parts.outer.astype(np.float64) if parts.outer is not None else total
