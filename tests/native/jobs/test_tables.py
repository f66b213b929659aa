"""Formats that are lists of values, and every element that the grammar can name, alone and in blocks."""

from typing import Any

import numpy as np
import pytest

import fewbits as fb
from fewbits import kernels
from fewbits.formats import Bdr, Block, Element, Exponent, Fixed, Float, Lookup, Posit, parse
from fewbits.kernels import native
from fewbits.kernels.bits.options import options
from fewbits.kernels.native.jobs.kernel_format import kernel_format
from fewbits.kernels.native.jobs.tables import table
from fewbits.kernels.reference import encode
from tests import cases
from tests.kernels.exact import exact
from tests.native import inputs
from tests.native.definition import differences, possible, suited

LISTED = tuple(f for f in cases.TABLED + cases.MADE if isinstance(f, Posit | Lookup | Exponent))
OTHERS = tuple(f for f in cases.MADE if not isinstance(f, Posit | Lookup | Exponent))


def ordered(x: cases.Singles) -> np.ndarray:
    """Return float32 as integers of the same order."""
    bits = x.view(np.uint32).astype(np.int64)
    return np.where(bits >= 2**31, 2**31 - bits, bits)


@pytest.mark.parametrize("element", LISTED, ids=cases.label)
def test_the_changes_of_a_table_lie_where_the_definition_changes(element: Element) -> None:
    x = np.concatenate([cases.every_bfloat16()[::7], inputs.telling(element)])
    x = x[np.isfinite(x) & (x >= 0 if isinstance(element, Exponent) else True)]
    lows = np.arange(-(2**15), 2**15) << 16
    for mode in cases.ROUNDINGS[:-1]:  # no table rounds stochastically
        changes = table(element, mode, "saturate")
        keys = changes.keys.astype(np.int64)
        assert (np.diff(keys) >= 0).all()
        assert (np.diff(changes.values) > 0).all()
        codes = changes.codes[np.searchsorted(keys, ordered(x), side="right")]
        assert np.array_equal(codes, encode(element, x.astype(np.float64), mode, "saturate", None)), mode
        # What narrows the search down: the keys at or below each upper half, and how many lie within.
        assert np.array_equal(changes.base, np.searchsorted(keys, lows, side="right")), mode
        assert max(np.diff(np.append(changes.base, len(keys)))) < 2**changes.steps, mode


@pytest.mark.parametrize("element", [f for f in LISTED if f.bits <= 6], ids=cases.label)
def test_the_changes_of_a_table_lie_where_exact_arithmetic_puts_them(element: Element) -> None:
    for mode in ("nearest_even", "toward_zero", "up"):
        keys = table(element, mode, "saturate").keys.astype(np.int64)
        inside = keys[(np.abs(keys) < 0x7F7FFFFF) & (keys > 0 if isinstance(element, Exponent) else True)]
        for before, at in zip(floats(inside - 1).tolist(), floats(inside).tolist(), strict=True):
            low, high = (exact(element).code(v, mode, "saturate") for v in (before, at))
            assert low != high, (mode, before, at)


def floats(keys: np.ndarray) -> cases.Singles:
    """Return the float32 of ordered integers."""
    return np.where(keys < 0, 2**31 - keys, keys).astype(np.uint32).view(np.float32)


@pytest.mark.parametrize("group", range(16))
def test_every_made_up_element_equals_the_definition(group: int) -> None:
    for element in cases.MADE[group::16]:
        x = np.concatenate([inputs.telling(element)[:4000], cases.every_exponent(3000)])
        for rounding in cases.ROUNDINGS:
            for overflow in cases.OVERFLOWS:
                chosen = possible(element, rounding=rounding, overflow=overflow)
                if chosen is not None and native.supports(element, chosen, np.float32):
                    assert differences(suited(x, chosen), element, 0, chosen) == [], (element, chosen)


BLOCKS = (
    lambda e: Block(e, parse("e8m0"), 32),
    lambda e: Block(e, Exponent(4, 7), 5),
    lambda e: Block(e, parse("fp32"), 16),
    lambda e: Block(e, parse("fp8_e4m3"), 16, parse("fp32")),
    lambda e: Block(e, parse("fp32"), "channel"),
    lambda e: Block(e, parse("fp32"), "tensor"),
    lambda e: Block(e, Fixed(4, 0, "unsigned"), 8, parse("fp32"), "channel"),
)


@pytest.mark.parametrize("made", BLOCKS, ids=lambda made: str(made(Float(2, 1))))
def test_every_made_up_element_in_blocks_equals_the_definition(made: Any) -> None:
    taken = 0
    for number, element in enumerate(cases.MADE):
        try:
            fmt = made(element)
        except fb.errors.FormatError:
            continue
        x = inputs.in_lines(
            np.concatenate([inputs.telling_blocks(element)[:1500], cases.blocks(20, 30).ravel()])
        )
        chosen = possible(fmt, rounding=("nearest_even", "stochastic", "down")[number % 3])
        assert chosen is not None
        if native.supports(fmt, chosen, np.float32):
            taken += 1
            assert differences(suited(x, chosen), fmt, 1, chosen) == [], (fmt, chosen)
    assert taken > 30


# What `plan` leaves to the definition, and why.
REFUSED = (
    parse("float(e=3,m=2,bias=140)"),  # subnormals below 2^-126
    parse("block(element=float(e=3,m=2,bias=-100),scale=e8m0,size=32)"),  # the element alone leaves float32
    Block(Lookup((0.0, 2.0**-100, 1.0)), Exponent(8, 127), 32),  # steps that are too fine
    parse("block(element=float(e=5,m=12),scale=float(e=5,m=12),size=16,outer=fp32)"),  # 26 bits in a product
    parse("block(element=float(e=2,m=1),scale=float(e=3,m=2,bias=140),size=16)"),
    Bdr(4, k1=2048, k2=1024),
)


@pytest.mark.parametrize("fmt", REFUSED, ids=cases.label)
def test_what_the_kernels_leave_to_the_definition_works_all_the_same(fmt: cases.Format) -> None:
    for rounding in ("nearest_even", "stochastic"):
        chosen = options(fmt, rounding=rounding, seed=4)
        assert kernel_format(fmt, chosen) is None
        assert not native.supports(fmt, chosen, np.float32)
        x = np.random.default_rng(0).standard_normal((40, 70)).astype(np.float32)
        for axis in (0, 1):
            generator = 4 if rounding == "stochastic" else None
            values = fb.fake_quantize(x, fmt, axis=axis, rounding=rounding, generator=generator)
            packed = fb.quantize(x, fmt, axis=axis, rounding=rounding, generator=generator)
            assert np.array_equal(packed.dequantize(), values)
    for dtype in (np.float64, np.int16):
        assert not native.supports(parse("mxfp4"), options(parse("mxfp4")), dtype)


def test_most_made_up_elements_are_taken() -> None:
    refused = [e for e in cases.MADE if kernel_format(e, options(e)) is None]
    assert len(refused) <= 2, refused
    assert all(isinstance(e, Float) and e.emin < -126 for e in refused)
    assert kernels.native.supports(OTHERS[0], options(OTHERS[0]), np.float16)
