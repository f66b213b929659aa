"""The definition of every operation: exact, readable, NumPy. Every backend must equal it.

It imports :mod:`fewbits.kernels.bits` and formats, nothing else. The folders are those of native/kernels and
of :mod:`fewbits.kernels.native`, where the fast twin of a module has the same name.
"""

from fewbits.kernels.reference.dequantize.dequantize import dequantize, multiplier
from fewbits.kernels.reference.quantize.quantize import limits, quantize, without_nonfinite
from fewbits.kernels.reference.values.encode import encode
from fewbits.kernels.reference.values.scales import scaled

__all__ = [
    "dequantize",
    "encode",
    "limits",
    "multiplier",
    "quantize",
    "scaled",
    "without_nonfinite",
]
