"""Measures of error, by hand on small arrays; what is published about them is in tests/conformance."""

import math

import numpy as np
import pytest
import torch

import fewbits as fb
from fewbits import kernels
from fewbits.errors import ArgumentError, DTypeError
from fewbits.formats import parse
from fewbits.metrics import Tally, _qsnr_of_tensors

INF, NAN = math.inf, math.nan


def test_qsnr_is_the_ratio_of_the_sums_of_squares_in_decibels() -> None:
    x, y = np.array([3.0, 4.0]), np.array([3.0, 4.5])
    assert fb.qsnr(x, y) == pytest.approx(10 * math.log10(25 / 0.25))
    assert fb.qsnr(torch.tensor([3.0, 4.0]), torch.tensor([3.0, 4.5])) == pytest.approx(20)
    assert fb.qsnr(x.astype(np.float16), y.astype(np.float32)) == pytest.approx(20)
    assert fb.qsnr(x, x) == INF
    assert fb.qsnr(np.zeros(3), np.zeros(3)) == INF
    assert fb.qsnr(np.zeros(3), np.ones(3)) == -INF
    assert fb.qsnr(np.empty(0), np.empty(0)) == INF


@pytest.mark.parametrize("size", [1e-320, 1e-200, 1e160, 1e307])
def test_qsnr_does_not_depend_on_whether_squares_are_in_range(size: float) -> None:
    x = np.array([3.0, 4.0])
    y = x + np.array([0.5, 0.0])
    for there in (fb.qsnr, _qsnr_of_tensors):
        assert there(torch.tensor(x * size), torch.tensor(y * size)) == pytest.approx(20, abs=0.01)
    noise = fb.qsnr(np.array([1e100, 1e-200]), np.array([1e100, 2e-200]))  # its square alone underflows
    assert noise == pytest.approx(6000)


def test_qsnr_of_finite_values_whose_differences_leave_the_range() -> None:
    big = 1.5e308
    for x, y, ratio in (
        ([big], [-big], 4.0),
        ([big, 3.0], [-big, 5.0], 4.0),
        ([big, -big], [-big, -big], 2.0),
    ):
        wanted = -10 * math.log10(ratio)  # |y - x|^2 / |x|^2, by hand
        for found in both_qsnr(x, y):
            assert found == pytest.approx(wanted)
    for y in ([-big, NAN], [-big, INF]):
        assert both_qsnr([big, 1.0], y) == [-INF, -INF]


def both_qsnr(x: list[float], y: list[float]) -> list[float]:
    """Return the QSNR of two arrays, and of two tensors as on another device."""
    a, b = np.array(x), np.array(y)
    return [fb.qsnr(a, b), _qsnr_of_tensors(torch.from_numpy(a), torch.from_numpy(b))]


def test_tensors_without_values_and_on_two_devices_are_refused() -> None:
    x, meta = torch.ones(3), torch.ones(3, device="meta")
    for call in (lambda: fb.qsnr(meta, meta), lambda: fb.measure(meta, "mxfp4")):
        with pytest.raises(ArgumentError, match="on the meta device, which holds no values; load them first"):
            call()
    for a, b in ((x, meta), (meta, x)):
        with pytest.raises(ArgumentError, match=r"qsnr of tensors on \w+ and \w+; put them on one device"):
            fb.qsnr(a, b)


def test_qsnr_of_nan_and_infinity_is_the_least() -> None:
    for x, y in (([NAN], [1.0]), ([INF], [INF]), ([1.0], [INF]), ([INF], [1.0])):
        assert fb.qsnr(np.array(x), np.array(y)) == -INF


def test_values_that_are_flushed_are_not_called_unchanged() -> None:
    for x in (np.array([1e-170, 2e-200]), np.array([5e-324])):
        error = fb.measure(x, "bf16")
        assert (error.qsnr_db, error.flushed_fraction) == (0.0, 1.0)


@pytest.mark.parametrize(
    "name", ["mxint8", "mxfp4", "posit8_1", "fp8_e4m3", "fp16", "nvfp4", "ternary_channel"]
)
@pytest.mark.parametrize("size", [1e153, 1e154, 1e155, 1e200, 1e307])
def test_values_whose_squares_leave_the_range_are_lost_but_no_worse(name: str, size: float) -> None:
    x = np.array([[1.5, -0.3, 1e-300, 0.0, 1e-150, 0.7, -1.1, 0.2]]) * size
    assert fb.measure(x, name).qsnr_db == fb.qsnr(x, fb.fake_quantize(x, name))


def test_arrays_are_added_to_what_they_are_together() -> None:
    rng = np.random.default_rng(0)
    arrays = [rng.standard_normal((4, 64)) * size for size in (1e-200, 1.0, 1e5, 1e200)]
    for some in (arrays[:1], arrays[:3], arrays[3:], arrays):
        together = Tally()
        for x in some:
            tally = Tally()
            tally.add(x, fb.fake_quantize(x, "fp8_e4m3", overflow="saturate"), 448.0)
            together.add_all(tally)
        x = np.concatenate(some)
        whole = Tally()
        whole.add(x, fb.fake_quantize(x, "fp8_e4m3", overflow="saturate"), 448.0)
        assert together.error().qsnr_db == pytest.approx(whole.error().qsnr_db)
        assert whole.error().qsnr_db == pytest.approx(
            fb.qsnr(x, fb.fake_quantize(x, "fp8_e4m3", overflow="saturate"))
        )
        assert (together.count, together.nonzero, together.flushed, together.saturated) == (
            whole.count, whole.nonzero, whole.flushed, whole.saturated,
        )  # fmt: skip
        assert together.relative == pytest.approx(whole.relative)
        assert together.largest_relative == whole.largest_relative


def test_qsnr_takes_the_packed_array_itself() -> None:
    x = np.random.default_rng(0).standard_normal((3, 40)).astype(np.float32)
    q = fb.quantize(x, "mxfp4", axis=0)
    assert fb.qsnr(x, q) == fb.qsnr(x, q.dequantize()) == fb.qsnr(x, fb.fake_quantize(x, "mxfp4", axis=0))


def test_qsnr_of_two_shapes_or_of_no_numbers_is_refused() -> None:
    with pytest.raises(
        ArgumentError, match=r"qsnr of shapes \(3,\) and \(1, 3\); expected the same shape twice"
    ):
        fb.qsnr(np.ones(3), np.ones((1, 3)))
    with pytest.raises(DTypeError, match="an array of int64; expected float16"):
        fb.qsnr(np.ones(3, np.int64), np.ones(3))


def test_measure_counts_by_hand() -> None:
    x = np.array([1.0, 1.2, 0.1, -7.9, 0.0, 4.0], np.float32)
    error = fb.measure(x, "fp4_e2m1")  # becomes 1, 1, 0, -6, 0, 4
    wide = x.astype(np.float64)
    difference = np.array([1, 1, 0, -6, 0, 4]) - wide
    relative = np.abs(difference[[0, 1, 2, 3, 5]]) / np.abs(wide[[0, 1, 2, 3, 5]])
    assert error.qsnr_db == pytest.approx(10 * math.log10((wide @ wide) / (difference @ difference)))
    assert error.max_relative_error == 1
    assert error.mean_relative_error == pytest.approx(relative.mean())
    assert error.saturated_fraction == pytest.approx(1 / 6)
    assert error.flushed_fraction == pytest.approx(1 / 6)


@pytest.mark.parametrize("name", ["mxfp4", "mx6", "nvfp4", "int8_channel", "fp8_e5m2"])
def test_measure_agrees_with_qsnr_along_any_axis_and_in_any_family(name: str) -> None:
    x = np.random.default_rng(1).standard_normal((40, 30)).astype(np.float32)
    for axis in (0, 1):
        error = fb.measure(x, name, axis=axis)
        assert error.qsnr_db == pytest.approx(fb.qsnr(x, fb.fake_quantize(x, name, axis=axis)), abs=1e-9)
        assert fb.measure(torch.from_numpy(x), name, axis=axis) == error


def test_measure_of_saturation_follows_the_scale_rule() -> None:
    # 7.9 under floor lies above 6 x 2^0; rceil takes the next power of two.
    x = np.array([7.9, 1.0, 0.3, 2.0], np.float32)
    assert fb.measure(x, "mxfp4").saturated_fraction == 0.25
    assert fb.measure(x, "mxfp4", scale_rule="rceil").saturated_fraction == 0
    assert fb.measure(x, "int8_tensor").saturated_fraction == 0  # the largest value is the scale


def test_measure_of_nothing_of_zeros_and_of_a_scalar() -> None:
    assert fb.measure(np.empty(0), "mxfp4") == fb.measure(np.zeros(5), "mxfp4")
    assert fb.measure(np.zeros(5), "mxfp4").qsnr_db == INF
    assert fb.measure(np.float32(3), "mxfp4").qsnr_db == INF


def test_nan_and_infinity_count_as_values_and_in_no_sum() -> None:
    x = np.array([1.1, NAN, INF, -2.0], np.float32)
    finite = fb.measure(np.array([1.1, -2.0], np.float32), "fp8_e4m3")
    error = fb.measure(x, "fp8_e4m3")
    assert error.qsnr_db == finite.qsnr_db
    assert error.mean_relative_error == finite.mean_relative_error
    assert error.saturated_fraction == 0
    lost = fb.measure(x, "mxfp8_e4m3")  # the whole block is NaN: nothing is left of the signal
    assert lost.qsnr_db == -INF


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("name", ["mxfp8_e4m3", "mx9", "fp8_e4m3", "mxint8"])
def test_infinity_that_saturates_is_the_largest_value_of_the_own_dtype(name: str, dtype: torch.dtype) -> None:
    x = (torch.randn(4, 64, generator=torch.Generator().manual_seed(0)) * 1000).to(dtype)
    x[0, 3], x[1, 40], x[2, 7] = INF, -INF, NAN
    finite = x.isfinite()
    y = fb.quantize(x, name, nonfinite="saturate").double().dequantize()[finite].numpy()
    wanted, size = x[finite].double().numpy(), x[finite].double().abs().numpy()
    error = fb.measure(x, name, nonfinite="saturate")
    noise = ((y - wanted) ** 2).sum()
    assert error.qsnr_db == pytest.approx(10 * math.log10((wanted**2).sum() / noise), abs=1e-6)
    assert error.flushed_fraction == ((y == 0) & (size > 0)).sum() / x.numel()
    assert error.mean_relative_error == pytest.approx((np.abs(y - wanted) / size).mean())
    if dtype in (torch.float16, torch.float32):
        assert fb.measure(x.numpy(), name, nonfinite="saturate") == error


def test_finite_values_that_become_nan_leave_no_largest_error() -> None:
    x = np.full(64, 3.0, np.float32)
    x[40] = INF
    error = fb.measure(x, "mxfp4")  # a block with an infinity becomes NaN
    assert math.isnan(error.mean_relative_error)
    assert math.isnan(error.max_relative_error)


def test_a_tally_of_pieces_is_the_measure_of_the_whole() -> None:
    x = np.random.default_rng(2).standard_normal((64, 48)).astype(np.float32)
    fmt = parse("mxfp4")
    y, limit = fb.fake_quantize(x, fmt), kernels.limits(x, fmt, -1, kernels.options(fmt))
    pieces, whole = Tally(), fb.measure(x, fmt)
    for i in range(0, 64, 16):
        pieces.add(x[i : i + 16], y[i : i + 16], limit[i : i + 16])
    found = pieces.error()
    assert found.qsnr_db == pytest.approx(whole.qsnr_db)
    assert found.mean_relative_error == pytest.approx(whole.mean_relative_error)
    assert (found.max_relative_error, found.saturated_fraction, found.flushed_fraction) == (
        whole.max_relative_error,
        whole.saturated_fraction,
        whole.flushed_fraction,
    )


def test_a_large_array_is_tallied_as_a_small_one() -> None:
    x = np.random.default_rng(3).standard_normal((512, 512)).astype(np.float32)
    error = fb.measure(x, "mx6")
    y = fb.fake_quantize(x, "mx6")
    assert error.qsnr_db == pytest.approx(fb.qsnr(x, y), abs=1e-9)
    assert error.flushed_fraction == np.mean((x != 0) & (y == 0))
