"""What a tally says of an array is what plain float64 NumPy says of the rounded array, in every case."""

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from fewbits import kernels
from fewbits.formats import Format, parse
from fewbits.kernels.bits.reals import BFLOAT16, rounded_to_dtype, widened
from tests import cases

Array = NDArray[Any]


def plainly(x: Array, y: Array, most: Array) -> kernels.ErrorSums:
    """Return the sums by NumPy's own order, written down without a thought of speed."""
    here = np.isfinite(x)
    a, b, c = x[here].astype(float), y[here].astype(float), np.broadcast_to(most, x.shape)[here]
    some = a != 0
    relative = np.abs(b - a)[some] / np.abs(a[some])
    return kernels.ErrorSums(
        float((a**2).sum()),
        float(((b - a) ** 2).sum()),
        float(relative.sum()),
        float(np.fmax.reduce(relative, initial=0)),  # a format without negative numbers makes NaN of them
        int(some.sum()),
        int((some & (b == 0)).sum()),
        int((np.abs(a) * (1 - 2.0**-20) > c).sum()),
    )


def same(found: kernels.ErrorSums, wanted: kernels.ErrorSums) -> bool:
    sums = np.allclose(found[:3], wanted[:3], rtol=1e-13, atol=0, equal_nan=True)
    return found[3:] == wanted[3:] and bool(sums)


def agree(x: Array, fmt: Format, axis: int, rule: str = "floor", amax: float | None = None) -> bool:
    chosen = kernels.options(fmt, scale_rule=rule)
    wide = widened(x)
    y = kernels.fake_quantize(wide, fmt, axis, chosen, amax)
    wanted = plainly(wide, y, kernels.limits(wide, fmt, axis, chosen, amax))
    return same(kernels.tally(x, fmt, axis, chosen, amax), wanted)


TYPES: tuple[Any, ...] = (np.float32, np.float64, np.float16, BFLOAT16)


@pytest.mark.parametrize("fmt", cases.FORMATS, ids=cases.label)
def test_every_format_and_type_along_any_axis(fmt: Format) -> None:
    rng = np.random.default_rng(0)
    x = rng.standard_normal((6, 70, 33)) * np.exp2(rng.uniform(-8, 4, (6, 70, 1)))
    x[rng.random(x.shape) < 0.05] = 0
    for dtype in TYPES:
        given = rounded_to_dtype(x.astype(np.float32) if dtype != np.float64 else x, dtype)
        for axis in range(3):
            assert agree(given, fmt, axis), (dtype, axis)
        assert agree(given[2, :, 3], fmt, 0)
        assert agree(given.transpose(2, 0, 1)[::2], fmt, 2)
        assert agree(given[0, 0, 0], fmt, 0)


def test_that_check_sees_what_is_wrong() -> None:
    fmt = parse("mxfp4")
    x, chosen = cases.blocks(3, 64, seed=1), kernels.options(fmt)
    found, most = kernels.tally(x, fmt, 1, chosen), kernels.limits(x, fmt, 1, chosen)
    y = kernels.fake_quantize(x, fmt, 1, chosen)
    assert same(found, plainly(x, y, most))
    assert not same(found, plainly(x, y, most / 2))
    y[1, 5] += 1e-3
    assert not same(found, plainly(x, y, most))


@pytest.mark.parametrize("rule", ["floor", "ceil", "rceil", "even"])
@pytest.mark.parametrize("name", ["mxfp4", "mxint8"])
def test_saturation_follows_the_scale_rule(name: str, rule: str) -> None:
    fmt = parse(name)
    x = cases.blocks(200, 64, seed=4)
    assert agree(x, fmt, 1, rule)
    saturated = kernels.tally(x, fmt, 1, kernels.options(fmt, scale_rule=rule)).saturated
    assert (saturated == 0) == (rule in ("ceil", "rceil"))


@pytest.mark.parametrize("dtype", [np.float32, np.float16, BFLOAT16])
@pytest.mark.parametrize("name", ["int8", "fp8_e5m2", "int8_channel", "int8_tensor", "mx6", "quda_half"])
def test_what_is_not_finite_counts_in_no_sum(name: str, dtype: Any) -> None:
    x = cases.blocks(9, 96, seed=5)
    x[2, 5], x[4, 7], x[4, 8] = np.nan, np.inf, -np.inf
    fmt = parse(name)
    given = rounded_to_dtype(x, dtype)
    chosen = kernels.options(fmt, nonfinite="saturate")
    rounded = kernels.fake_quantize(given, fmt, 1, chosen)
    wide, found = widened(given), kernels.tally(given, fmt, 1, chosen)
    most = kernels.limits(given, fmt, 1, chosen)
    wanted = plainly(wide, widened(rounded), most)
    if dtype == np.float32:  # the others were rounded once more
        assert same(found, wanted)
    assert (found.nonzero, found.saturated) == (wanted.nonzero, wanted.saturated)


@pytest.mark.parametrize("text", ["block(element=int(8),scale=e8m0,size=300)", "bdr(m=4,k1=600,d2=2,k2=3)"])
def test_blocks_too_long_for_the_compiled_tally(text: str) -> None:
    for shape in ((3, 1500), (2, 700), (70_000, 4)):
        assert agree(cases.blocks(*shape, seed=6), parse(text), 1)


def test_a_tally_of_nothing_and_of_zeros() -> None:
    fmt = parse("mxfp4")
    for x in (np.empty((0, 4), np.float32), np.empty((4, 0), np.float64), np.zeros((3, 40), np.float16)):
        assert kernels.tally(x, fmt, 1, kernels.options(fmt)) == kernels.ErrorSums()


@pytest.mark.parametrize("amax", [None, 1.0, 100.0])
@pytest.mark.parametrize("name", ["nvfp4", "fp8_e4m3_tensor"])
def test_a_scale_of_the_whole_tensor_is_that_of_every_piece(name: str, amax: float | None) -> None:
    for dtype in (np.float32, np.float64):
        assert agree(cases.blocks(700, 160, seed=7).astype(dtype), parse(name), 1, amax=amax)


@pytest.mark.parametrize("rule", ["absmean", "twn"])
@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.float16])
def test_a_mean_of_the_whole_tensor_is_that_of_all_its_values(rule: str, dtype: Any) -> None:
    x = np.random.default_rng(8).standard_normal((700, 160)).astype(dtype)
    magnitude = np.abs(x.astype(float))
    if rule == "absmean":
        scale = np.float32(magnitude.mean())
        y = scale * np.clip(np.rint(widened(x) / scale), -1, 1)
    else:
        beyond = magnitude > 0.7 * magnitude.mean()
        scale = np.float32(magnitude[beyond].mean())
        y = scale * np.sign(x) * beyond
    fmt = parse("ternary_tensor")
    found = kernels.tally(x, fmt, 1, kernels.options(fmt, scale_rule=rule))
    assert same(found, plainly(widened(x), y, np.asarray(scale, float)))


@pytest.mark.parametrize("name", ["mxfp4", "int8_tensor", "posit8_1"])
def test_each_value_draws_by_its_place_in_the_whole_array(name: str) -> None:
    fmt = parse(name)
    for shape, axis in (((700, 160), 1), ((700, 160), 0), ((3, 4, 50), 1), ((), 0)):
        x = np.asarray(np.random.default_rng(9).standard_normal(shape), np.float32)
        chosen = kernels.options(fmt, rounding="stochastic", seed=7)
        y = kernels.fake_quantize(x, fmt, axis, chosen)
        wanted = plainly(x, y, kernels.limits(x, fmt, axis, chosen))
        assert same(kernels.tally(x, fmt, axis, chosen), wanted), (shape, axis)
