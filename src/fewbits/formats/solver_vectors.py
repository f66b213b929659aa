"""The two 16-bit formats with shared scales in which solvers store vectors and matrices."""

from __future__ import annotations

from fewbits.formats.blocks import Block
from fewbits.formats.elements import Exponent, Fixed, Float

SCALED_FP16 = Block(Float(5, 10, 15, "ieee"), Exponent(8), "tensor")
"""Half precision with one power of two for a whole vector."""

SITE_INT16 = Block(Fixed(16, 0, "symmetric"), Float(8, 23, 127, "ieee"), 32)
"""QUDA's half precision with 32 values per site: integers with a float32 norm for each site."""
