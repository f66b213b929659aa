"""The definition of every operation: exact, readable, NumPy. Every backend must equal it."""

from fewbits.kernels.reference.encode import encode, nan_code
from fewbits.kernels.reference.packing import line_bytes, pack, unpack
from fewbits.kernels.reference.quantize import (
    Parts,
    dequantize,
    limits,
    multiplier,
    quantize,
    scaled,
    without_nonfinite,
)
from fewbits.kernels.reference.scale_rules import SCALE_RULES

__all__ = [
    "SCALE_RULES",
    "Parts",
    "dequantize",
    "encode",
    "limits",
    "line_bytes",
    "multiplier",
    "nan_code",
    "pack",
    "quantize",
    "scaled",
    "unpack",
    "without_nonfinite",
]
