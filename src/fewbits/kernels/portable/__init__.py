"""Plain operations of torch that equal the definition, for devices without kernels of ours.

Nothing waits for the device: no value of a tensor decides what Python does next. So torch.compile fuses
these functions into what calls them, and torch.export records them. The folders are those of
:mod:`fewbits.kernels.reference`.
"""

from fewbits.kernels.portable.dequantize.dequantize import dequantize
from fewbits.kernels.portable.gemm.additions import product as addition_product
from fewbits.kernels.portable.gemv.gemv import gemv, gemv_int8
from fewbits.kernels.portable.gemv.planes import plane_product
from fewbits.kernels.portable.nm.stream import compress, expand
from fewbits.kernels.portable.quantize.quantize import fake_quantize, is_finite, quantize
from fewbits.kernels.portable.sparse.rows import RowProduct
from fewbits.kernels.portable.tally.tally import tally
from fewbits.kernels.portable.top_k.top_k import top_k
from fewbits.kernels.portable.values.counter_uniform import counter_uniform
from fewbits.kernels.portable.values.magnitudes import largest_finite, smallest

__all__ = [
    "RowProduct",
    "addition_product",
    "compress",
    "counter_uniform",
    "dequantize",
    "expand",
    "fake_quantize",
    "gemv",
    "gemv_int8",
    "is_finite",
    "largest_finite",
    "plane_product",
    "quantize",
    "smallest",
    "tally",
    "top_k",
]
