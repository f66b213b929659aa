"""From packed parts of any content to values: every instruction set equals the definition."""

from typing import Any

import numpy as np
import pytest

from fewbits.formats import Element, parse
from fewbits.kernels import native, reference
from fewbits.kernels.bits.layout import Packed, empty, unpacked
from fewbits.kernels.bits.options import options
from fewbits.kernels.bits.packing import pack
from fewbits.kernels.bits.reals import BFLOAT16, rounded_to_dtype
from tests import cases
from tests.native.definition import difference

# Blocks that begin within 16 values or go on beyond a tile; other widths of codes and scales.
INVENTED = tuple(
    parse(text)
    for text in (
        "block(element=float(e=4,m=3,special=fnuz),scale=fp32,size=8)",
        "block(element=float(e=5,m=10,special=ieee),scale=e8m0,size=40)",
        "block(element=fixed(16,frac=3),scale=fp32,size=24)",
        "block(element=float(e=6,m=9),scale=fp32,size=48)",
        "block(element=int(8),scale=float(e=5,m=2,special=ieee),size=56)",
        "block(element=int(8),scale=float(e=3,m=2),size=24)",
        "block(element=float(e=2,m=3),scale=float(e=4,m=3,special=fnuz),size=16)",
        "block(element=float(e=3,m=2),scale=e8m0,size=2000)",
        "block(element=fixed(7,frac=2),scale=exponent(5),size=12)",
        "bdr(m=5,d1=4,k1=48,d2=1,k2=2)",
    )
)
LENGTHS = (1, 15, 16, 17, 47, 97, 1023, 1024, 1072, 2100, 4096)


def supported(fmt: cases.Format) -> bool:
    return native.supports(fmt, options(fmt), np.float32)


def any_parts(fmt: cases.Format, shape: tuple[int, ...], axis: int) -> Packed:
    """Return parts of random bytes: all codes of elements and scales occur, spare bits are set too."""
    rng = np.random.default_rng(len(str(fmt)) + shape[-1])
    codes, scales, shifts, outer = empty(fmt, shape, axis)
    for part in (codes, scales, shifts):
        if part is not None:
            part[...] = rng.integers(0, 256, part.shape, np.uint8)
    if outer is not None:
        outer[...] = np.exp2(rng.uniform(-20, 20, outer.shape))
    return Packed(codes, scales, shifts, outer)


def unlike_definition(
    q: Packed, fmt: cases.Format, shape: tuple[int, ...], axis: int, dtype: Any
) -> list[str]:
    """Return all that any instruction set makes of the parts unlike the definition, as sentences."""
    with np.errstate(all="ignore"):
        values = reference.dequantize(unpacked(q, fmt, shape, axis), fmt, np.float32)
    expected = np.ascontiguousarray(rounded_to_dtype(np.moveaxis(values, -1, axis), dtype))
    found = []
    for isa in native.available_isas():
        native.force_isa(isa)
        for threads in (1, 2):
            out = np.full(shape, 77, dtype)
            native.dequantize(q, out, fmt, axis, threads=threads)
            found.append(difference(None, out, expected, f"{isa}, {threads} threads, {shape}"))
    return [sentence for sentence in found if sentence is not None]


@pytest.mark.parametrize(
    "element", [e for e in (*cases.TABLED, *cases.MADE) if supported(e)], ids=cases.label
)
def test_every_code_of_an_element_is_decoded_as_the_definition_says(element: Element) -> None:
    codes = np.resize(np.arange(2**element.bits), max(2**element.bits, 64) + 5)
    q = Packed(pack(codes[None], element.bits))
    assert unlike_definition(q, element, (1, codes.size), 1, np.float32) == []


@pytest.mark.parametrize("dtype", [np.float32, np.float16, BFLOAT16], ids=["float32", "float16", "bfloat16"])
@pytest.mark.parametrize("fmt", [*cases.BLOCKED, *INVENTED], ids=cases.label)
def test_parts_of_any_content_are_decoded_as_the_definition_says(fmt: cases.Format, dtype: Any) -> None:
    for n in LENGTHS if dtype == np.float32 else LENGTHS[4:8]:
        for shape, axis in (((3, n), 1), ((n, 70), 0)):
            assert unlike_definition(any_parts(fmt, shape, axis), fmt, shape, axis, dtype) == []


def test_another_scale_of_one_block_changes_that_block_alone() -> None:
    fmt, shape = parse("quda_quarter"), (2, 96)
    q = any_parts(fmt, shape, 1)
    assert q.scales is not None
    q.codes[...], q.scales[...] = 3, np.float32(2).reshape(1).view(np.uint8)[[0, 1, 2, 3] * 4]
    values = np.full(shape, 77, np.float32)
    native.dequantize(q, values, fmt, 1, threads=1)
    q.scales[1, 4:8] = np.float32(4).reshape(1).view(np.uint8)
    other = np.full(shape, 77, np.float32)
    native.dequantize(q, other, fmt, 1, threads=1)
    assert np.flatnonzero(other != values).tolist() == list(range(96 + 24, 96 + 48))
