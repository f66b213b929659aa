"""Number formats as data: the meaning of each bit pattern. Needs only NumPy.

* ``format.py``: the abstract definitions: element, groups of values that share a scale, defaults.
* ``elements/``: formats without shared scales, one file for each kind: float, fixed, posit, lookup, exponent.
* ``blocks.py``: formats with shared scales; N:M sparsity is in ``pattern.py``.
* ``catalogue.py``: every published format by name, with its source; a new one is a row there.
* ``value_tables.py``: the value of each code, such as the sixteen values of MXFP4.
* ``grammar.py``: parses formats from text; ``nearest.py``: suggestions for an unknown name.

A format does not say how a power-of-two scale is chosen; :mod:`fewbits.kernels.bits.scale_rules` does.
"""

from fewbits.formats.blocks import (
    Bdr,
    Block,
    channel_bits_per_value,
    for_one_channel,
    packed_bits,
    shares_scale,
)
from fewbits.formats.catalogue import CATALOGUE, elements
from fewbits.formats.cost import area_memory_proxy
from fewbits.formats.elements import Exponent, Fixed, Float, Lookup, Posit
from fewbits.formats.format import Element, Entry, Format, Group, Groups, Size, ValueGrid
from fewbits.formats.grammar import parse, split
from fewbits.formats.pattern import Pattern, pattern
from fewbits.formats.solver_vectors import SCALED_FP16, SITE_INT16
from fewbits.formats.value_tables import decode, values

__all__ = [
    "CATALOGUE",
    "SCALED_FP16",
    "SITE_INT16",
    "Bdr",
    "Block",
    "Element",
    "Entry",
    "Exponent",
    "Fixed",
    "Float",
    "Format",
    "Group",
    "Groups",
    "Lookup",
    "Pattern",
    "Posit",
    "Size",
    "ValueGrid",
    "area_memory_proxy",
    "channel_bits_per_value",
    "decode",
    "elements",
    "for_one_channel",
    "packed_bits",
    "parse",
    "pattern",
    "shares_scale",
    "split",
    "values",
]
