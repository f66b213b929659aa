"""Error feedback in one pass: all instruction sets and thread numbers equal the definition bit for bit."""

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from fewbits.formats import Format, parse
from fewbits.kernels import native
from fewbits.kernels.arrays import feedback
from fewbits.kernels.bits.layout import empty, packed
from fewbits.kernels.bits.options import Options, options
from fewbits.kernels.bits.reals import BFLOAT16, rounded_to_dtype
from fewbits.kernels.reference.feedback.feedback import quantize_with_feedback
from tests import cases
from tests.native.definition import CONVERTING, difference, possible
from tests.native.inputs import awkward, blocks_of_every_scale, finite, telling

Array = NDArray[Any]
TYPES: tuple[Any, ...] = (np.float32, np.float16, BFLOAT16)


def inputs(fmt: Format, n: int, dtype: Any, chosen: Options) -> tuple[Array, Array]:
    """Return values around the boundaries of an element and of every scale, and residuals of their size."""
    rng = np.random.default_rng(n)
    x = rng.permutation(np.concatenate([blocks_of_every_scale(), telling(fmt.element), awkward()[:n]]))
    x = rounded_to_dtype(np.resize(x, n), dtype)
    residual = finite(np.resize(blocks_of_every_scale()[::-1], n)) * np.float32(0.125)
    return finite(x) if chosen.nonfinite == "raise" else x, residual


def faults(fmt: Format, n: int, dtype: Any, chosen: Options, threads: tuple[int, ...]) -> list[str]:
    """Return where an instruction set differs from the definition, as sentences."""
    x, residual = inputs(fmt, n, dtype, chosen)
    parts, left = quantize_with_feedback(x, residual, fmt, chosen)
    wanted, found = packed(parts, fmt), []
    for isa in CONVERTING:
        native.force_isa(isa)
        for count in threads:
            mine, rest = empty(fmt, (n,), 0), residual.copy()
            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(feedback, "threads", lambda count=count: count)
                feedback.quantize_with_feedback(x.copy(), rest, fmt, chosen, mine)
            found.append(difference(None, rest, left, f"{isa}, {count} threads: residual"))
            found += (
                difference(None, ours, theirs, f"{isa}, {count} threads: {name}")
                for name, ours, theirs in zip(wanted._fields, mine, wanted, strict=True)
                if theirs is not None
            )
    return [sentence for sentence in found if sentence is not None]


@pytest.mark.parametrize(
    ("fmt", "rows"), cases.by_first(cases.pairs(cases.FORMATS, (1, 33, 1025, 20_001), TYPES, cases.ROUNDINGS))
)
def test_every_format_equals_the_definition(fmt: Format, rows: list[Any]) -> None:
    for n, dtype, rounding in rows:
        chosen = possible(fmt, rounding=rounding)
        if chosen is not None:
            assert faults(fmt, n, dtype, chosen, (1,)) == [], (n, dtype, rounding)


@pytest.mark.parametrize("rounding", ["nearest_even", "stochastic"])
@pytest.mark.parametrize(
    "name",
    ["mxfp4", "nvfp4", "fp8_e4m3_tensor", "int8_channel", "mx6", "block(element=int(5),scale=e8m0,size=24)"],
)
def test_threads_share_scales_and_draws(name: str, rounding: str) -> None:
    fmt = parse(name)
    assert faults(fmt, 150_000, np.float32, options(fmt, rounding=rounding, seed=3), (1, 2, 3)) == []


@pytest.mark.parametrize("size", [40, 96, 1000, 1024, 3000])
@pytest.mark.parametrize("bits", [3, 8])
def test_blocks_that_fit_no_tile(size: int, bits: int) -> None:
    fmt = parse(f"block(element=int({bits}),scale=e8m0,size={size})")
    assert faults(fmt, 70_003, BFLOAT16, options(fmt), (1, 2)) == []


@pytest.mark.parametrize("nonfinite", cases.NONFINITES)
@pytest.mark.parametrize("name", ["mxfp8_e4m3", "int8_tensor", "fp8_e4m3_tensor", "nvfp4", "bf16"])
def test_what_is_not_finite(name: str, nonfinite: str) -> None:
    fmt = parse(name)
    chosen = possible(fmt, nonfinite=nonfinite)
    if chosen is not None:
        for dtype in TYPES:
            assert faults(fmt, 20_001, dtype, chosen, (1, 2)) == []
