"""The operators of torch, here and nowhere else: schema, shape function, gradient, vmap, sharding."""

from fewbits.kernels.ops.by_triton import multiplies_packed, multiplies_rounded
from fewbits.kernels.ops.conversions import dequantize, fake_quantize, quantize, quantize_both
from fewbits.kernels.ops.flat import (
    dequantize_add,
    dequantize_flat,
    empty_kept,
    largest_finite,
    quantize_flat,
    quantize_with_feedback,
    top_k,
)
from fewbits.kernels.ops.nm import check_masks, compress, expand
from fewbits.kernels.ops.planes import plane_product
from fewbits.kernels.ops.products import (
    addition_product,
    bfloat16_product,
    gemv,
    gemv_int8,
    rounded_product,
    rounds_in_product,
)
from fewbits.kernels.ops.tally import tally

__all__ = [
    "addition_product",
    "bfloat16_product",
    "check_masks",
    "compress",
    "dequantize",
    "dequantize_add",
    "dequantize_flat",
    "empty_kept",
    "expand",
    "fake_quantize",
    "gemv",
    "gemv_int8",
    "largest_finite",
    "multiplies_packed",
    "multiplies_rounded",
    "plane_product",
    "quantize",
    "quantize_both",
    "quantize_flat",
    "quantize_with_feedback",
    "rounded_product",
    "rounds_in_product",
    "tally",
    "top_k",
]
