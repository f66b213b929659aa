"""Lines side by side: their codes wait until they fill whole bytes and then a line of the cache."""

import numpy as np
import pytest

from fewbits.formats import parse
from fewbits.kernels.bits.options import options
from tests import cases
from tests.native import inputs
from tests.native.definition import differences

FORMATS = (*cases.BLOCKED, *map(parse, ("fp4_e2m1", "fp6_e2m3", "fp8_e4m3", "int2", "fixed(9,frac=3)")))
# Of a line: rows that end before, at and behind eight, what waits of each width, and an item of the work.
ROWS = (7, 8, 61, 64, 65, 104, 128, 136, 300, 1100)


@pytest.mark.parametrize("fmt", FORMATS, ids=cases.label)
def test_lines_side_by_side_equal_the_definition(fmt: cases.Format) -> None:
    x = inputs.single(fmt, True).ravel()
    x = x[np.isfinite(x)]
    for rows in ROWS:
        given = np.resize(np.roll(x, -17 * rows), (rows, 21))
        assert differences(given, fmt, 0, options(fmt)) == [], rows
