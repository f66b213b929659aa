"""Number formats as data: elements, blocks, their grammar and the catalogue. Needs NumPy only."""

from fewbits.formats.blocks import Bdr, Block, for_one_channel, packed_bits, shares_scale
from fewbits.formats.catalogue import CATALOGUE, elements
from fewbits.formats.cost import area_memory_proxy
from fewbits.formats.elements import Exponent, Fixed, Float, Lookup, Posit
from fewbits.formats.format import Element, Entry, Format, Grid, Group, Groups, Size
from fewbits.formats.grammar import parse, split
from fewbits.formats.pattern import Pattern, pattern
from fewbits.formats.value_tables import decode, values

__all__ = [
    "CATALOGUE",
    "Bdr",
    "Block",
    "Element",
    "Entry",
    "Exponent",
    "Fixed",
    "Float",
    "Format",
    "Grid",
    "Group",
    "Groups",
    "Lookup",
    "Pattern",
    "Posit",
    "Size",
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
