"""Tiles without NaN and infinity: their codes are rounded and packed in registers, wherever that may end."""

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from fewbits.formats import Element, parse
from fewbits.kernels import native
from fewbits.kernels.bits.layout import Packed, empty
from fewbits.kernels.bits.options import options
from tests import cases
from tests.native import inputs
from tests.native.definition import defined, difference, differences

# Every width, an odd one too: with and without sign, in blocks of each size that has its own way and of none.
FORMATS = cases.BLOCKED + tuple(
    parse(text)
    for text in (
        "fp8_e4m3",
        "fp8_e5m2",
        "bf16",
        "fp8_e4m3fnuz",
        "fp6_e2m3",
        "int8",
        "int4",
        "uint4",
        "fixed(3,frac=1)",
        "fixed(9,frac=3)",
        "fixed(16,frac=10)",
        "block(element=int(2),scale=e8m0,size=16)",
        "block(element=int(7),scale=e8m0,size=32)",
        "block(element=int(16),scale=e8m0,size=16)",
        "block(element=float(e=2,m=2),scale=fp32,size=32)",
        "block(element=float(e=3,m=0),scale=e8m0,size=32)",
        "block(element=float(e=2,m=13),scale=e8m0,size=16)",
        "block(element=int(5),scale=e8m0,size=48)",
        "block(element=int(8),scale=e8m0,size=64)",
        "block(element=int(8),scale=e8m0,size=channel)",
        "bdr(m=5,d1=4,k1=16,d2=1,k2=2)",
        "bdr(m=4,k1=32,k2=2)",
        "bdr(m=4,k1=32,d2=2,k2=2)",
        "bdr(m=4,k1=32,d2=0,k2=2)",
    )
)
# Below and at what is joined at once, at and around a short tile and a long one, no whole number of either.
LENGTHS = (16, 48, 64, 80, 96, 992, 1024, 1040, 2032, 2048, 2080, 3120, 4112)


def finite_lines(fmt: cases.Format, n: int) -> NDArray[np.float32]:
    """Values around the boundaries of the format, none of them NaN or infinite: three lines."""
    with np.errstate(over="ignore"):
        x = inputs.single(fmt, True).ravel()
    x = x[np.isfinite(x)]
    return np.resize(x[np.random.default_rng(n).integers(x.size // 2) :], (3, n))


@pytest.mark.parametrize("fmt", FORMATS, ids=cases.label)
def test_lines_that_end_anywhere_equal_the_definition(fmt: cases.Format) -> None:
    for n in LENGTHS:
        for rounding in ("nearest_even", "stochastic"):
            chosen = options(fmt, rounding=rounding, seed=n)
            assert differences(finite_lines(fmt, n), fmt, 1, chosen) == [], (n, rounding)


def around_the_largest(fmt: Element) -> NDArray[np.float32]:
    """Return finite lines, a third of them around the largest value, halfway to the next, and far beyond."""
    half, most = fmt.max * (1 + 2.0 ** -(fmt.mantissa_bits + 2)), float(np.finfo(np.float32).max)
    near = [fmt.max, half * (1 - 2.0**-22), half, half * (1 + 2.0**-22), half * 100, most]
    with np.errstate(over="ignore"):
        x = finite_lines(fmt, 1040)
        single = np.array([*near, *(-v for v in near)], np.float64).astype(np.float32)
    x[:, ::3] = np.resize(single[np.isfinite(single)], x[:, ::3].shape)
    return x


@pytest.mark.parametrize("overflow", ["inf", "saturate"])
@pytest.mark.parametrize(
    "name",
    [
        "fp8_e5m2",
        "fp16",
        "bf16",
        "float(e=8,m=2,special=ieee)",
        "float(e=8,m=10,special=ieee)",
        "float(e=8,m=17,special=ieee)",
    ],
)
def test_values_without_scales_overflow_as_the_definition_says(name: str, overflow: str) -> None:
    fmt = parse(name)
    assert isinstance(fmt, Element)
    x = around_the_largest(fmt)
    for rounding, bits in (("nearest_even", 16), ("stochastic", 16), ("stochastic", 32)):
        chosen = options(fmt, rounding=rounding, overflow=overflow, random_bits=bits, seed=3)
        assert differences(x, fmt, 1, chosen) == [], (rounding, bits)
        found = np.isinf(defined(x, fmt, 1, chosen).values)
        assert found.any() == (overflow == "inf")  # so that some really do


@pytest.mark.parametrize("fmt", FORMATS, ids=cases.label)
def test_a_nan_in_one_tile_leaves_the_tiles_beside_it(fmt: cases.Format) -> None:
    x = finite_lines(fmt, 4096)
    x[1, 1500] = np.nan
    chosen = options(fmt)
    if chosen.nonfinite != "raise":
        assert differences(x, fmt, 1, chosen) == []


def guarded(part: Any) -> Any:
    """Return room for a part within a larger array, whose other bytes are 0x5a."""
    if part is None:
        return None
    whole = np.full(part.nbytes + 256, 0x5A, np.uint8)
    return whole[128 : 128 + part.nbytes].view(part.dtype).reshape(part.shape)


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("fmt", FORMATS, ids=cases.label)
def test_no_byte_beyond_the_codes_is_written(fmt: cases.Format, threads: int, isa: str) -> None:
    chosen = options(fmt)
    x = finite_lines(fmt, 2080 if threads == 1 else 32800)
    if threads == 1:
        x = x[:1]
    wanted = defined(x, fmt, 1, chosen).parts
    parts = Packed(*map(guarded, empty(fmt, x.shape, 1)))
    native.quantize(x, parts, fmt, 1, chosen, None, threads=threads)
    for name, mine, theirs in zip(Packed._fields, parts, wanted, strict=True):
        if theirs is not None:
            assert difference(None, mine, theirs, f"{isa}: {name}") is None
            around = mine.base.base if mine.base.base is not None else mine.base
            assert (around.view(np.uint8)[:128] == 0x5A).all()
            assert (around.view(np.uint8)[-128:] == 0x5A).all()


@pytest.mark.parametrize("offset", [1, 3, 15])
@pytest.mark.parametrize("fmt", FORMATS, ids=cases.label)
def test_values_that_start_anywhere_equal_the_definition(fmt: cases.Format, offset: int) -> None:
    x = finite_lines(fmt, 1040).ravel()
    chosen = options(fmt)
    assert differences(x[offset : offset + 2080].reshape(2, 1040), fmt, 1, chosen) == []
