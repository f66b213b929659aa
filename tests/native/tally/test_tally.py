"""Sums and counts of errors: all instruction sets and thread numbers equal the definition bit for bit."""

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from fewbits.formats import Format, parse, shares_scale
from fewbits.kernels import limits, native
from fewbits.kernels.bits.error_sums import LANES, MOST_TOGETHER, ErrorSums, part_of
from fewbits.kernels.bits.options import options
from fewbits.kernels.bits.reals import BFLOAT16, rounded_to_dtype, widened
from fewbits.kernels.native.jobs.packed import joins_lines
from fewbits.kernels.reference.tally.tally import tally
from tests import cases
from tests.native.definition import defined
from tests.native.inputs import blocks_of_every_scale, finite, telling

Array = NDArray[Any]

# Lines shorter than the lanes, lines of which several are one part, whole parts, and a part and a bit.
SHAPES = ((300, 3), (7, 147), (2, MOST_TOGETHER), (3, MOST_TOGETHER + LANES + 1), (40, 96), (1, 1))
TYPES: tuple[Any, ...] = (np.float32, np.float16, BFLOAT16)


def by_definition(x: Array, fmt: Format, chosen: Any, amax: float | None) -> ErrorSums:
    wide = widened(x)
    y = defined(wide, fmt, 1, chosen, amax).values
    # Lines that share nothing are one.
    is_one = joins_lines(fmt, x.shape, 1) and not shares_scale(fmt, "channel")
    shape = (1, -1) if is_one else x.shape
    most = np.broadcast_to(limits(wide, fmt, 1, chosen, amax), x.shape)
    part = part_of(fmt)
    assert part is not None
    return tally(wide.reshape(shape), y.reshape(shape), most.reshape(shape), part)


def values(fmt: Format, shape: tuple[int, int], dtype: Any) -> Array:
    """Return values around the boundaries of an element and of every scale, of which a tenth are zeros."""
    rng = np.random.default_rng(shape[1])
    x = rng.permutation(np.concatenate([blocks_of_every_scale(), telling(fmt.element)]))
    x = np.where(rng.random(shape) < 0.1, np.float32(0), np.resize(x, shape))
    return finite(rounded_to_dtype(x, dtype))


@pytest.mark.parametrize(
    ("fmt", "rows"), cases.by_first(cases.pairs(cases.FORMATS, SHAPES, TYPES, ("nearest_even", "down")))
)
def test_every_instruction_set_equals_the_definition(fmt: Format, rows: list[Any]) -> None:
    for shape, dtype, rounding in rows:
        x, chosen = values(fmt, shape, dtype), options(fmt, rounding=rounding)
        wanted = by_definition(x, fmt, chosen, None)
        for isa in native.available_isas():
            native.force_isa(isa)
            found = native.tally(x, fmt, chosen, None, threads=1)
            # As text, in which NaN is NaN: e8m0 makes it of what is negative.
            assert repr(found) == repr(wanted), (isa, shape, dtype, rounding)


@pytest.mark.parametrize("name", ["nvfp4", "fp8_e4m3_tensor", "int8_tensor"])
@pytest.mark.parametrize("amax", [None, 1.0, 0.0, 2.0**-140])
def test_a_given_amax_decides_what_the_whole_array_shares(isa: str, name: str, amax: float | None) -> None:
    fmt = parse(name)
    x, chosen = cases.blocks(20, 64, seed=2), options(fmt)
    assert native.tally(x, fmt, chosen, amax, threads=1) == by_definition(x, fmt, chosen, amax)


@pytest.mark.parametrize("name", ["mxfp4", "mx6", "nvfp4", "int8_channel", "posit8_1", "quda_half"])
@pytest.mark.parametrize("shape", [(1, 300_000), (2400, 120), (100_000, 3)])
def test_the_number_of_threads_changes_no_bit(isa: str, name: str, shape: tuple[int, int]) -> None:
    fmt = parse(name)
    x, chosen = cases.blocks(*shape, seed=3), options(fmt)
    alone = native.tally(x, fmt, chosen, None, threads=1)
    assert {native.tally(x, fmt, chosen, None, threads=n) for n in (2, 3)} == {alone}
    pairs = [native.tally_values(x, x * np.float32(0.9), 1.0, threads=n) for n in (1, 2, 3)]
    assert len(set(pairs)) == 1


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("n", [0, 1, 7, 8, 2047, 2048, 2049, 5000])
def test_pairs_equal_the_definition_whatever_is_not_finite(isa: str, n: int, dtype: Any) -> None:
    rng = np.random.default_rng(n)
    x = (rng.standard_normal(n) * np.exp2(rng.uniform(-90, 90, n))).astype(dtype)
    y = (x * rng.choice([0, 0.5, 1, 1.25], n)).astype(dtype)
    x[::13], x[5::29], y[7::31], x[3::17] = np.nan, -np.inf, np.inf, 0
    for most in (1.0, rng.choice([0.5, np.inf, np.nan], n)):
        for threads in (1, 2):
            found = native.tally_values(x, y, most, threads=threads)
            assert repr(found) == repr(tally(x[None], y[None], most, MOST_TOGETHER))


def test_what_is_not_finite_is_left_to_others(isa: str) -> None:
    fmt = parse("mxfp4")
    for bad in (np.nan, np.inf, -np.inf):
        for at in (0, 4097):
            x = np.ones((3, 4000), np.float32)
            x.flat[at] = bad
            assert native.tally(x, fmt, options(fmt), None, threads=2) is None


def test_draws_and_long_blocks_are_left_to_others() -> None:
    fmt, long = parse("mxfp4"), parse("block(element=int(8),scale=e8m0,size=257)")
    assert native.supports_tally(fmt, options(fmt), np.float32)
    assert not native.supports_tally(fmt, options(fmt, rounding="stochastic"), np.float32)
    assert not native.supports_tally(fmt, options(fmt), np.float64)
    assert not native.supports_tally(long, options(long), np.float32)
