"""The definition of every operation: exact, readable, NumPy. Every backend must equal it."""

from fewbits.kernels.reference.encode import encode, nan_code
from fewbits.kernels.reference.packing import pack, unpack
from fewbits.kernels.reference.quantize import Parts, dequantize, limits, quantize
from fewbits.kernels.reference.scale_rules import SCALE_RULES

__all__ = ["SCALE_RULES", "Parts", "dequantize", "encode", "limits", "nan_code", "pack", "quantize", "unpack"]
