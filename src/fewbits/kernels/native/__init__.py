"""Calls into the compiled kernels, which equal :mod:`fewbits.kernels.reference` bit for bit.

One build holds the kernels for several instruction sets and takes the best that the CPU runs. The environment
variable ``FEWBITS_ISA`` or :func:`force_isa` makes it take another, so that one machine can test them all.
"""

from fewbits.kernels.native.convert import (
    dequantize,
    fake_quantize,
    gemv,
    magnitudes,
    quantize,
    supports,
    supports_product,
)
from fewbits.kernels.native.counter_uniform import counter_uniform
from fewbits.kernels.native.exact import exact_arithmetic
from fewbits.kernels.native.isa import active_isa, available_isas, force_isa, isas
from fewbits.kernels.native.nm_permutation import SwapSearch
from fewbits.kernels.native.product import addition_product, bfloat16_product, has_bfloat16_products
from fewbits.kernels.native.residuals import extents, residuals
from fewbits.kernels.native.sparse_rows import RowProduct
from fewbits.kernels.native.sparse_stream import compress as compress_lines
from fewbits.kernels.native.sparse_stream import expand as expand_lines
from fewbits.kernels.native.stencil import StencilPasses
from fewbits.kernels.native.triangles import substitute

__all__ = [
    "RowProduct",
    "StencilPasses",
    "SwapSearch",
    "active_isa",
    "addition_product",
    "available_isas",
    "bfloat16_product",
    "compress_lines",
    "counter_uniform",
    "dequantize",
    "exact_arithmetic",
    "expand_lines",
    "extents",
    "fake_quantize",
    "force_isa",
    "gemv",
    "has_bfloat16_products",
    "isas",
    "magnitudes",
    "quantize",
    "residuals",
    "substitute",
    "supports",
    "supports_product",
]
