"""How memory is cut into pages."""

from fewbits import _native

ask_for_huge_pages = _native.ask_for_huge_pages
