"""Arrays in narrow formats: the NarrowTensor and the everyday functions."""

from fewbits.tensor.functions import dequantize, fake_quantize, format, quantize
from fewbits.tensor.narrow import NarrowTensor

__all__ = ["NarrowTensor", "dequantize", "fake_quantize", "format", "quantize"]
