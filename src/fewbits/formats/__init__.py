"""Number formats as data: elements, blocks, their grammar and the catalogue. Needs NumPy only."""

from fewbits.formats.blocks import Bdr, Block, for_one_channel, packed_bits, shares_scale
from fewbits.formats.catalogue import CATALOGUE, Entry, elements
from fewbits.formats.cost import area_memory_proxy
from fewbits.formats.describe import describe, facts
from fewbits.formats.elements import Element, Exponent, Fixed, Float, Lookup, Posit
from fewbits.formats.format import Format
from fewbits.formats.grammar import parse, split
from fewbits.formats.pattern import Pattern, pattern
from fewbits.formats.values import decode, values

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
    "Lookup",
    "Pattern",
    "Posit",
    "area_memory_proxy",
    "decode",
    "describe",
    "elements",
    "facts",
    "for_one_channel",
    "packed_bits",
    "parse",
    "pattern",
    "shares_scale",
    "split",
    "values",
]
