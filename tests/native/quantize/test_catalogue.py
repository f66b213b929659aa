"""Every catalogued format, every choice: the compiled kernels equal the definition bit for bit."""

from collections.abc import Iterable, Iterator
from itertools import product
from typing import Any

import numpy as np
import pytest

from fewbits import kernels
from fewbits.errors import DataError
from fewbits.formats import CATALOGUE, Block, parse
from fewbits.kernels import native
from fewbits.kernels.bits.layout import empty
from fewbits.kernels.bits.options import has_scale_rule, options
from tests import cases
from tests.native import inputs
from tests.native.definition import differences, possible, suited

# Formats that nobody catalogued, for the corners: odd sizes, steps below and above one, few scale exponents,
# a mantissa of 22 bits, none at all, exponents at both ends of float32.
INVENTED = tuple(
    parse(text)
    for text in (
        "float(e=8,m=22,special=ieee)",
        "float(e=3,m=2,bias=126)",
        "float(e=4,m=0,bias=-110)",
        "fixed(24,frac=3)",
        "fixed(5,frac=-60)",
        "fixed(9,frac=64)",
        "block(element=float(e=5,m=10,special=ieee),scale=e8m0,size=32)",
        "block(element=int(8),scale=e8m0,size=7)",
        "block(element=fixed(6,frac=9),scale=e8m0,size=32)",
        "block(element=float(e=2,m=1),scale=exponent(4),size=16)",
        "block(element=float(e=2,m=1),scale=e8m0,size=100)",
        "block(element=posit(8,es=1),scale=e8m0,size=24)",
        "block(element=int(8),scale=e8m0,size=channel)",
        "bdr(m=3,d1=8,k1=12,d2=2,k2=3)",
        "bdr(m=5,d1=4,k1=16,d2=1,k2=2)",
        "bdr(m=15,d2=4,k2=4)",
        "bdr(m=1,d2=0,k2=16)",
    )
)
FORMATS = cases.FORMATS + INVENTED


def choices(fmt: cases.Format) -> Iterator[dict[str, Any]]:
    """Each rounding with the rule floor, each rule with nearest and with one directed rounding."""
    for rounding in cases.ROUNDINGS:
        yield {"rounding": rounding}
    yield {"rounding": "stochastic", "random_bits": 32}
    if has_scale_rule(fmt):
        for rule in cases.SCALE_RULES[1:]:
            yield {"scale_rule": rule}
            yield {"scale_rule": rule, "rounding": "up"}


@pytest.mark.parametrize("name", CATALOGUE)
def test_the_kernels_take_the_catalogue_in_every_type(name: str) -> None:
    fmt = parse(name)
    for dtype in (np.float32, np.float16, np.uint16):
        assert all(native.supports(fmt, options(fmt, **choice), dtype) for choice in choices(fmt))


@pytest.mark.parametrize("fmt", FORMATS, ids=cases.label)
def test_float32_equals_the_definition_on_everything_awkward(fmt: cases.Format) -> None:
    chosen = options(fmt)
    assert differences(suited(inputs.single(fmt, True), chosen), fmt, 1, chosen) == []


@pytest.mark.parametrize("fmt", FORMATS, ids=cases.label)
def test_every_rounding_and_scale_rule_equals_the_definition(fmt: cases.Format) -> None:
    for choice in choices(fmt):
        chosen = options(fmt, seed=11, **choice)
        assert differences(suited(inputs.single(fmt, False), chosen), fmt, 1, chosen) == [], choice


@pytest.mark.parametrize("dtype", [np.float16, np.uint16], ids=["float16", "bfloat16"])
@pytest.mark.parametrize("fmt", cases.FORMATS, ids=cases.label)
def test_all_values_of_the_16_bit_types_equal_the_definition(fmt: cases.Format, dtype: Any) -> None:
    chosen = options(fmt)
    assert differences(suited(inputs.every_half(dtype), chosen), fmt, 1, chosen) == []
    chosen = options(fmt, rounding="stochastic", seed=2**62 + 3)
    x = np.ascontiguousarray(inputs.every_half(dtype)[-100:])
    assert differences(suited(x, chosen), fmt, 1, chosen) == []


def special_choices(fmt: cases.Format) -> list[list[Any]]:
    """What the format can do of each option for values that it does not have, each rounding, each type."""
    tried = (
        ("overflow", cases.OVERFLOWS),
        ("nonfinite", cases.NONFINITES),
        ("zero_block", cases.ZERO_BLOCKS),
    )
    can = [[name for name in names if possible(fmt, **{option: name})] for option, names in tried]
    assert len(can[0]) + len(can[1]) >= 2  # saturation of both kinds
    assert len(can[2]) == 2
    return [*can, list(cases.ROUNDINGS), [np.float32, np.float16, np.uint16]]


def _special_values_equal_the_definition(fmt: cases.Format, rows: Iterable[tuple[Any, ...]]) -> None:
    for overflow, nonfinite, zero_block, rounding, dtype in rows:
        chosen = possible(
            fmt, rounding=rounding, overflow=overflow, nonfinite=nonfinite, zero_block=zero_block
        )
        assert chosen is not None
        single = dtype == np.float32
        x = inputs.single(fmt, False)[:60] if single else inputs.every_half(dtype)[690:740]
        assert differences(suited(x, chosen), fmt, 1, chosen) == [], (chosen, dtype)


@pytest.mark.parametrize("fmt", FORMATS, ids=cases.label)
def test_overflow_nonfinite_zero_block_and_rounding_equal_the_definition_in_pairs(fmt: cases.Format) -> None:
    _special_values_equal_the_definition(fmt, cases.pairs(*special_choices(fmt)))


@pytest.mark.slow
@pytest.mark.parametrize("fmt", FORMATS, ids=cases.label)
def test_every_overflow_nonfinite_zero_block_and_rounding_equals_the_definition(fmt: cases.Format) -> None:
    _special_values_equal_the_definition(fmt, product(*special_choices(fmt)))


LENGTHS = (1, 2, 15, 16, 31, 33, 511, 512, 513, 1025, 4096, 4097, 9001)
HOW = (LENGTHS, ("nearest_even", "stochastic"), (0, 1))


def _lines_equal_the_definition(fmt: cases.Format, n: int, rounding: str, axis: int) -> None:
    x = inputs.single(fmt, True).ravel()
    x = np.resize(x[np.random.default_rng(n).integers(x.size // 2) :], (max(3, 2000 // n), n))
    chosen = options(fmt, rounding=rounding, seed=n)
    given = suited(x if axis else x.ravel(), chosen)
    assert differences(given, fmt, axis, chosen) == [], (n, rounding, axis)


@pytest.mark.parametrize(("fmt", "rows"), cases.by_first(cases.pairs(FORMATS, *HOW)))
def test_every_length_of_line_equals_the_definition(fmt: cases.Format, rows: list[Any]) -> None:
    for row in rows:
        _lines_equal_the_definition(fmt, *row)


@pytest.mark.slow
@pytest.mark.parametrize("fmt", FORMATS, ids=cases.label)
def test_every_length_of_line_equals_the_definition_in_every_rounding(fmt: cases.Format) -> None:
    for row in product(*HOW):
        _lines_equal_the_definition(fmt, *row)


LONG = tuple(
    parse(text)
    for text in (
        *(
            f"block(element={element},scale=e8m0,size={size})"
            for element in ("float(e=2,m=1)", "int(8)", "posit(8,es=1)")
            for size in (100, 512, 513, 1000, "channel")
        ),
        *(
            f"block(element={element},scale=fp32,size={size})"
            for element in ("float(e=4,m=3,special=fn)", "float(e=2,m=1)")
            for size in (100, 513, "channel", "tensor")
        ),
        "block(element=float(e=2,m=1),scale=fp8_e4m3,size=600,outer=fp32)",
        "block(element=float(e=2,m=1),scale=fp8_e4m3,size=600,outer=fp32,outer_size=channel)",
        "bdr(m=4,k1=600,k2=2)",
        "bdr(m=4,k1=600,d2=2,k2=3)",
        "bdr(m=4,k1=1000,d2=3,k2=50)",
    )
)


@pytest.mark.parametrize("fmt", LONG, ids=cases.label)
def test_blocks_longer_than_what_is_worked_on_at_once_equal_the_definition(fmt: cases.Format) -> None:
    rng = np.random.default_rng(4)
    with np.errstate(over="ignore"):
        scales = np.exp2(rng.uniform(-60, 60, (9, 1)))
        x = (rng.standard_normal((9, 1500)) * scales * np.exp2(rng.uniform(-9, 0, (9, 1500)))).astype(
            np.float32
        )
    x[2, ::7] = 0
    x[3], x[4] = 0, x[4] * 1e-38
    x[5, 700:], x[6, 3], x[7, 1300] = np.float32(2.0**-149), np.nan, -np.inf
    for nonfinite in cases.NONFINITES:
        for rounding in ("nearest_even", "down", "stochastic"):
            chosen = possible(fmt, nonfinite=nonfinite, rounding=rounding)
            if chosen is not None:
                given = suited(x, chosen)
                assert differences(given, fmt, 1, chosen) == [], chosen
                assert differences(given.astype(np.float32).ravel(), fmt, 0, chosen) == [], chosen
                assert differences(np.ascontiguousarray(given.T), fmt, 0, chosen) == [], chosen


SHARED = tuple(f for f in cases.BLOCKED if isinstance(f, Block) and "tensor" in (f.size, f.outer_size))


@pytest.mark.parametrize("fmt", SHARED, ids=cases.label)
def test_a_given_amax_decides_what_the_whole_array_shares(fmt: Block) -> None:
    x = cases.blocks(20, 64, seed=2)
    whole = float(np.abs(x).max())
    bad = x.copy()
    bad[3, 5], bad[7, 7] = np.nan, np.inf
    for amax in (None, whole, whole / 64, 2.0**-140, 0.0, 3e38, 1.0):
        for nonfinite in cases.NONFINITES:
            chosen = possible(fmt, nonfinite=nonfinite)
            if chosen is not None:
                for given in (x, x * 0, suited(bad, chosen)):
                    for axis in (0, 1):
                        assert differences(given, fmt, axis, chosen, amax) == [], (amax, chosen, axis)


@pytest.mark.parametrize("fmt", SHARED, ids=cases.label)
def test_a_given_amax_beyond_float32_counts_as_in_the_definition(fmt: Block) -> None:
    x = cases.blocks(20, 64, seed=2)
    with np.errstate(over="ignore"):
        assert differences(x, fmt, 1, options(fmt), 1e39) == []


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("name", ["int8", "fp4_e2m1", "posit8_1", "mxfp4", "nvfp4", "mx6", "int8_channel"])
def test_raise_refuses_what_is_not_finite_wherever_it_lies(name: str, bad: float) -> None:
    fmt = parse(name)
    chosen = options(fmt, nonfinite="raise")
    for place, axis in ((0, 1), (-1, 1), (40_000, 0), (70_001, 1)):
        x = np.ones((350, 300), np.float32)
        x.flat[place] = bad
        for work in (kernels.fake_quantize, kernels.quantize):
            with pytest.raises(DataError, match=f"nonfinite='raise' refuses them for .*{name[:3]}"):
                work(x, fmt, axis, chosen)
        for isa in native.available_isas():
            native.force_isa(isa)
            for threads in (1, 3):
                assert native.quantize(x, empty(fmt, x.shape, axis), fmt, axis, chosen, None, threads=threads)
                assert native.magnitudes(x, threads=threads) == (1.0, 1.0, True)
        native.force_isa(None)
