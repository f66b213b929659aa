"""Values of packed parts added to others in one pass: equal to decoding and then adding, bit for bit."""

from typing import Any

import numpy as np
import pytest

from fewbits.formats import Format, parse
from fewbits.kernels import native
from fewbits.kernels.bits.layout import packed
from fewbits.kernels.bits.options import options
from fewbits.kernels.reference import dequantize, quantize
from tests import cases
from tests.native.definition import CONVERTING, difference
from tests.native.inputs import awkward


def faults(fmt: Format, n: int, threads: tuple[int, ...]) -> list[str]:
    rng = np.random.default_rng(n)
    with np.errstate(all="ignore"):
        x = np.resize(rng.permutation(awkward()), n)
        parts = quantize(x, fmt, options(fmt, nonfinite="saturate"), 3.0, None)
        into = (rng.standard_normal(n) * np.exp2(rng.integers(-20, 20, n))).astype(np.float32)
        into[::7] = np.resize(awkward(), into[::7].size)
        wanted = into + dequantize(parts, fmt, np.float32)
    found: list[str | None] = []
    for isa in CONVERTING:
        native.force_isa(isa)
        for count in threads:
            mine = into.copy()
            native.dequantize(packed(parts, fmt), mine, fmt, 0, threads=count, add=True)
            found.append(difference(None, mine, wanted, f"{isa}, {count} threads"))
    return [sentence for sentence in found if sentence is not None]


@pytest.mark.parametrize(("fmt", "rows"), cases.by_first(cases.pairs(cases.FORMATS, (1, 33, 1025, 5001))))
def test_every_format_equals_decoding_and_then_adding(fmt: Format, rows: list[Any]) -> None:
    if native.supports(fmt, options(fmt), np.float32):
        assert [fault for (n,) in rows for fault in faults(fmt, n, (1,))] == []


@pytest.mark.parametrize("name", ["mxfp4", "nvfp4", "int8_channel", "mx6", "posit8_1"])
def test_threads_add_each_value_once(name: str) -> None:
    assert faults(parse(name), 150_001, (1, 2, 3)) == []


def test_values_are_added_to_flat_float32_alone() -> None:
    fmt = parse("fp8_e4m3")
    q = packed(quantize(np.ones((4, 8), np.float32), fmt, options(fmt), None, None), fmt)
    for out in (np.zeros((4, 8), np.float16), np.zeros((8, 4), np.float32).T):
        with pytest.raises(ValueError, match=r"values are added to flat float32|incompatible"):
            native.dequantize(q, out, fmt, 0, threads=1, add=True)
