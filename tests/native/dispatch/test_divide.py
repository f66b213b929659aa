"""Threads take items some at a time; what they make together is what one thread makes."""

import numpy as np
import pytest

from fewbits.formats import parse
from fewbits.kernels import native
from fewbits.kernels.bits.layout import empty
from fewbits.kernels.bits.options import options

# More than a thread takes at once, several times, and no whole number of that: long lines, short ones, and
# lines side by side.
CASES = (((3, 700_001), 1), ((1501, 1100), 1), ((1, 1_500_000), 1), ((1100, 1501), 0))


@pytest.mark.parametrize(("shape", "axis"), CASES)
@pytest.mark.parametrize("name", ["mxfp4", "mx6", "int8_tensor", "vsq4", "fp8_e4m3"])
def test_three_threads_make_what_one_makes(name: str, shape: tuple[int, ...], axis: int) -> None:
    fmt = parse(name)
    x = np.random.default_rng(0).standard_normal(shape, np.float32)
    x.flat[-1] = 9.0  # the largest, in the last item
    made = []
    for threads in (1, 3):
        parts, values = empty(fmt, shape, axis), np.full(shape, 77, np.float32)
        native.quantize(x, parts, fmt, axis, options(fmt), None, threads=threads)
        native.dequantize(parts, values, fmt, axis, threads=threads)
        stochastic = np.full_like(values, 77)
        native.fake_quantize(
            x, stochastic, fmt, axis, options(fmt, rounding="stochastic", seed=3), None, threads=threads
        )
        measured = native.magnitudes(x, threads=threads)
        made.append([np.asarray(p) for p in (*parts, values, stochastic, measured) if p is not None])
    assert all(map(np.array_equal, *made))
