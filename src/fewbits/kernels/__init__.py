"""Kernels: conversion of numbers to packed bits and back, and computation on packed bits.

* :mod:`fewbits.kernels.bits`: layout, packing and options, which the definition and the backends share.
* :mod:`fewbits.kernels.reference`: the definition, in NumPy.
* :mod:`fewbits.kernels.native`: the compiled kernels; ``portable``: plain torch, for other devices.
* :mod:`fewbits.kernels.arrays`: operations on NumPy arrays, by the fastest backend; the usual ones are here.
* :mod:`fewbits.kernels.ops`: the operators that torch sees, and which backend works on a tensor.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from fewbits.kernels.arrays.conversions import dequantize, fake_quantize, limits, quantize
from fewbits.kernels.arrays.products import (
    addition_product,
    bfloat16_product,
    gemv,
    has_bfloat16_products,
    has_tiles,
    max_vectors,
)
from fewbits.kernels.arrays.tally import tally, tally_values
from fewbits.kernels.arrays.threads import threads
from fewbits.kernels.arrays.values import largest, largest_finite, smallest
from fewbits.kernels.bits.error_sums import ErrorSums
from fewbits.kernels.bits.layout import Packed
from fewbits.kernels.bits.options import Options, check_scale_rule, has_scale_rule, options
from fewbits.kernels.bits.reals import BFLOAT16
from fewbits.kernels.native import active_isa, available_isas, exact_arithmetic, force_isa, isas

if TYPE_CHECKING:
    from fewbits.kernels.ops.backends import active_backend, backends, force_backend

__all__ = [
    "BFLOAT16",
    "ErrorSums",
    "Options",
    "Packed",
    "active_backend",
    "active_isa",
    "addition_product",
    "available_isas",
    "backends",
    "bfloat16_product",
    "check_scale_rule",
    "dequantize",
    "exact_arithmetic",
    "fake_quantize",
    "force_backend",
    "force_isa",
    "gemv",
    "has_bfloat16_products",
    "has_scale_rule",
    "has_tiles",
    "isas",
    "largest",
    "largest_finite",
    "limits",
    "max_vectors",
    "options",
    "quantize",
    "smallest",
    "tally",
    "tally_values",
    "threads",
]

_OF_TENSORS = ("active_backend", "backends", "force_backend")  # found when asked for: they need torch


def __getattr__(name: str) -> Any:
    if name in _OF_TENSORS:
        globals()[name] = found = getattr(import_module("fewbits.kernels.ops.backends"), name)
        return found
    raise AttributeError(f"fewbits.kernels has no name {name!r}")
