"""Plain operations of torch that equal the definition, for devices without kernels of ours.

Nothing waits for the device: no value of a tensor decides what Python does next. So torch.compile fuses
these functions into what calls them, and torch.export records them. The folders are those of
:mod:`fewbits.kernels.reference`.
"""

from fewbits.kernels.portable.dequantize.dequantize import dequantize
from fewbits.kernels.portable.quantize.quantize import fake_quantize, quantize

__all__ = ["dequantize", "fake_quantize", "quantize"]
