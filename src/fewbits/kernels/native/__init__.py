"""Calls into the compiled kernels, which equal :mod:`fewbits.kernels.reference` bit for bit.

One build holds the kernels for several instruction sets and takes the best that the CPU runs. The environment
variable ``FEWBITS_ISA`` or :func:`force_isa` makes it take another, so that one machine can test them all.
"""

from fewbits.kernels.native.fake_quantize import Result, fake_quantize, run, supports
from fewbits.kernels.native.isa import active_isa, available_isas, force_isa, isas
from fewbits.kernels.native.real_scales import fake_quantize_real_scale, supports_real_scale

__all__ = [
    "Result",
    "active_isa",
    "available_isas",
    "fake_quantize",
    "fake_quantize_real_scale",
    "force_isa",
    "isas",
    "run",
    "supports",
    "supports_real_scale",
]
