"""Element formats: what the bits of one value mean, one file for each kind.

Each format is a frozen record. Its fields are the whole truth about it; everything else is derived from them
with exact integer arithmetic. Values are exact in float64 for every format that can be written here.
"""

from fewbits.formats.elements.exponent import Exponent
from fewbits.formats.elements.fixed import Fixed
from fewbits.formats.elements.float import Float
from fewbits.formats.elements.lookup import Lookup
from fewbits.formats.elements.posit import Posit

__all__ = ["Exponent", "Fixed", "Float", "Lookup", "Posit"]
