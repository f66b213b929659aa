"""Calls into the compiled kernels, which equal :mod:`fewbits.kernels.reference` bit for bit.

One build holds the kernels for several instruction sets and takes the best that the CPU runs. The environment
variable ``FEWBITS_ISA`` or :func:`force_isa` makes it take another, so that one machine can test them all.

The folders are those of native/kernels and of :mod:`fewbits.kernels.reference`. Only
:mod:`fewbits.kernels.arrays` and the operators of torch import this package.
"""

from fewbits.kernels.native.dense.lu import exchange_rows, factorize_lu
from fewbits.kernels.native.dense.residuals import extents, residuals
from fewbits.kernels.native.dense.triangles import substitute
from fewbits.kernels.native.dequantize.dequantize import dequantize, dequantize_lent
from fewbits.kernels.native.dispatch.exact import exact_arithmetic
from fewbits.kernels.native.dispatch.isa import active_isa, available_isas, force_isa, isas
from fewbits.kernels.native.dispatch.pages import ask_for_huge_pages
from fewbits.kernels.native.dispatch.scratch import empty_kept
from fewbits.kernels.native.feedback.feedback import quantize_with_feedback
from fewbits.kernels.native.gemm.additions import addition_product
from fewbits.kernels.native.gemm.product import (
    has_bfloat16_products,
    has_tiles,
    has_unit,
    product,
    rounds_in_product,
    side_by_side,
)
from fewbits.kernels.native.gemv.gemv import gemv, gemv_format, gemv_lent, supports_product
from fewbits.kernels.native.gemv.planes import can_multiply_bytes, plane_product
from fewbits.kernels.native.jobs.packed import joins_lines
from fewbits.kernels.native.jobs.plan import Plan, plan, reading_plan
from fewbits.kernels.native.nm.permutation import PermutationSearch
from fewbits.kernels.native.nm.stream import compress, expand
from fewbits.kernels.native.quantize.quantize import (
    fake_quantize,
    fake_quantize_lent,
    quantize,
    quantize_lent,
    supports,
)
from fewbits.kernels.native.sparse.rows import RowProduct
from fewbits.kernels.native.stencil.passes import StencilPasses, serves
from fewbits.kernels.native.tally.tally import supports_tally, tally, tally_values
from fewbits.kernels.native.top_k.top_k import MOST_RANKED, top_k
from fewbits.kernels.native.values.counter_uniform import counter_uniform
from fewbits.kernels.native.values.magnitudes import magnitudes

__all__ = [
    "MOST_RANKED",
    "PermutationSearch",
    "Plan",
    "RowProduct",
    "StencilPasses",
    "active_isa",
    "addition_product",
    "ask_for_huge_pages",
    "available_isas",
    "can_multiply_bytes",
    "compress",
    "counter_uniform",
    "dequantize",
    "dequantize_lent",
    "empty_kept",
    "exact_arithmetic",
    "exchange_rows",
    "expand",
    "extents",
    "factorize_lu",
    "fake_quantize",
    "fake_quantize_lent",
    "force_isa",
    "gemv",
    "gemv_format",
    "gemv_lent",
    "has_bfloat16_products",
    "has_tiles",
    "has_unit",
    "isas",
    "joins_lines",
    "magnitudes",
    "plan",
    "plane_product",
    "product",
    "quantize",
    "quantize_lent",
    "quantize_with_feedback",
    "reading_plan",
    "residuals",
    "rounds_in_product",
    "serves",
    "side_by_side",
    "substitute",
    "supports",
    "supports_product",
    "supports_tally",
    "tally",
    "tally_values",
    "top_k",
]
