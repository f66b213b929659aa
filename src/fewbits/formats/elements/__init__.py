"""Element formats: the meaning of the bits of one value, one file for each kind.

Each format is a frozen record. Everything else is derived from its fields with exact integer arithmetic. The
values of every valid element are exact in float64. So are their products with scales that have no more than
53 significant bits; docs/rules.md says what becomes of others.
"""

from fewbits.formats.elements.exponent import Exponent
from fewbits.formats.elements.fixed import Fixed
from fewbits.formats.elements.float import Float
from fewbits.formats.elements.lookup import Lookup
from fewbits.formats.elements.posit import Posit

__all__ = ["Exponent", "Fixed", "Float", "Lookup", "Posit"]
