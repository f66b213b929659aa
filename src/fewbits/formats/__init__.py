"""Number formats as data: what bits mean. Needs NumPy only.

* ``format.py``: what every format declares: its element, the groups of values that share a number, defaults.
* ``elements/``: the kinds whose values stand alone, one file for each: float, fixed, posit, lookup, exponent.
* ``blocks.py``: the kinds whose values share scales; N:M sparsity is in ``pattern.py``.
* ``catalogue.py``: every published format by name, with its source; a new one is a row there.
* ``value_tables.py``: what each code is worth, such as the sixteen values of MXFP4.
* ``grammar.py``: formats from text; ``nearest.py``: what a wrong name may have meant.

How a power-of-two scale is chosen is no part of a format: :mod:`fewbits.kernels.bits.scale_rules`.
"""

from fewbits.formats.blocks import Bdr, Block, for_one_channel, packed_bits, shares_scale
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
