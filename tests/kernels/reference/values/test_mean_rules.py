"""Scales chosen from the mean magnitude: by hand, by loops over numbers, and by what they minimize."""

from math import fsum
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from scipy.optimize import minimize_scalar

import fewbits as fb
from fewbits.errors import ArgumentError
from fewbits.kernels import options
from fewbits.kernels.arrays.mean_scales import coded, round_by_mean, values_of
from fewbits.kernels.reference import dequantize, quantize


def rounded(x: list[float], format: str, rule: str) -> list[float]:
    found: list[float] = fb.fake_quantize(np.array(x), format, scale_rule=rule).tolist()
    return found


def test_ternary_values_by_hand() -> None:
    """Mean 1.1: absmean goes up from 0.55 on; twn keeps what is beyond 0.77, whose mean is 1.75."""
    x = [0.5, -0.6, 0.1, 0.7, -1.0, 2.5, 2.3]
    assert fsum(map(abs, x)) / 7 == pytest.approx(1.1)
    of_mean = np.float32(1.1)
    assert rounded(x, "ternary_channel", "absmean") == [0, -of_mean, 0, of_mean, -of_mean, of_mean, of_mean]
    beyond = np.float32((1.0 + 2.5 + 2.3) / 3)
    assert rounded(x, "ternary_channel", "twn") == [0, 0, 0, 0, -beyond, beyond, beyond]


def test_binary_values_by_hand() -> None:
    assert rounded([3.0, -1.0, 0.0, 4.0], "binary_tensor", "absmean") == [2, -2, 2, 2]


def by_loops(line: list[float], rule: str, binary: bool) -> list[float]:
    mean = fsum(map(abs, line)) / len(line)
    if rule == "twn":
        kept = [abs(v) for v in line if abs(v) > 0.7 * mean]
        scale = float(np.float32(fsum(kept) / len(kept)))
        return [0.0 if abs(v) <= 0.7 * mean else scale * np.sign(v) for v in line]
    scale = float(np.float32(mean))
    if binary:
        return [scale if v >= 0 else -scale for v in line]
    return [scale * min(max(round(v / scale), -1), 1) for v in line]


@pytest.mark.parametrize("size", ["channel", "tensor", "7"])
@pytest.mark.parametrize(
    ("element", "rule"), [("ternary", "twn"), ("ternary", "absmean"), ("binary", "absmean")]
)
def test_random_values_as_by_loops(element: str, rule: str, size: str) -> None:
    x = np.random.default_rng(0).standard_normal((5, 23))
    found = fb.fake_quantize(x, f"block(element={element},scale=fp32,size={size})", scale_rule=rule)
    rows, width = (1, 115) if size == "tensor" else (5, 23 if size == "channel" else 7)
    lines = x.reshape(rows, -1)
    blocks = [(r, slice(i, i + width)) for r in range(rows) for i in range(0, lines.shape[1], width)]
    expected = np.empty_like(lines)
    for block in blocks:
        expected[block] = by_loops(lines[block].tolist(), rule, element == "binary")
    assert (found == expected.reshape(x.shape)).all()


@pytest.mark.parametrize("name", ["ternary_channel", "ternary_tensor", "binary_channel"])
def test_packed_and_rounded_values_are_the_same_in_every_dtype(name: str) -> None:
    x = torch.randn(3, 70, 5, generator=torch.Generator().manual_seed(0))
    for dtype in (torch.float64, torch.float32, torch.bfloat16, torch.float16):
        for axis in (0, 1, 2):
            own = x.to(dtype)
            q = fb.quantize(own, name, axis=axis, scale_rule="absmean")
            assert torch.equal(q.dense(), fb.fake_quantize(own, name, axis=axis, scale_rule="absmean"))


@pytest.mark.parametrize("size", ["channel", "tensor", "7"])
@pytest.mark.parametrize(
    ("element", "rule"), [("ternary", "twn"), ("ternary", "absmean"), ("binary", "absmean")]
)
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_the_fast_way_is_the_definition(element: str, rule: str, size: str, dtype: type[Any]) -> None:
    format = fb.format(f"block(element={element},scale=fp32,size={size})")
    chosen = options(format, scale_rule=rule)
    x: NDArray[Any] = np.random.default_rng(3).standard_normal((6, 29)).astype(dtype)
    x[0, :5] = [0, -0.0, 0.5, 1e-40, -1e-40]
    x[5] = np.where(np.arange(29) % 2, 2.0, -1.0)  # of a mean that ties lie on
    wanted = quantize(x, format, chosen)
    found = round_by_mean(x, format, chosen)
    assert found is not None
    parts = coded(*found, format)
    assert wanted.scales is not None
    assert np.array_equal(parts.codes, wanted.codes)
    assert parts.scales is not None
    assert np.array_equal(parts.scales, wanted.scales)
    assert (values_of(*found, format) == dequantize(wanted, format, np.float32)).all()
    for other in (np.nan, np.inf):  # left to the definition
        assert round_by_mean(np.where(x > 1, other, x).astype(dtype), format, chosen) is None
    assert round_by_mean(np.zeros((2, 8), dtype), format, chosen) is None


def test_a_tie_goes_to_zero() -> None:
    x = [2.0, 1.0, -1.0, 4.0]  # mean 2: halves are ties
    assert rounded(x, "ternary_channel", "absmean") == [2, 0, 0, 2]


def test_binary_values_have_the_scale_of_least_squares() -> None:
    x = np.random.default_rng(1).standard_normal(200)
    best = minimize_scalar(lambda a: np.square(x - a * np.sign(x)).sum()).x
    scale = np.abs(fb.fake_quantize(x, "binary_channel", scale_rule="absmean")[0])
    assert scale == pytest.approx(best, rel=1e-6)


def test_the_threshold_of_twn_is_near_the_best_and_the_largest_magnitude_is_no_scale() -> None:
    x = np.random.default_rng(2).standard_normal(5000)

    def error(rounded: np.ndarray) -> float:
        return float(np.square(x - rounded).sum())

    def at(threshold: float) -> float:
        kept = np.abs(x) > threshold
        return error(np.where(kept, np.sign(x) * np.abs(x)[kept].mean(), 0))

    best = min(at(t) for t in np.linspace(0.2, 1.2, 101))
    assert error(fb.fake_quantize(x, "ternary_channel", scale_rule="twn")) < 1.02 * best
    assert error(fb.fake_quantize(x, "ternary_channel", scale_rule="absmean")) < 1.5 * best
    assert error(fb.fake_quantize(x, "ternary_channel")) > 2 * best  # the control


def test_zeros_have_a_scale_and_gradients_pass() -> None:
    assert rounded([0.0, 0.0], "ternary_channel", "twn") == [0, 0]
    x = torch.randn(2, 9).requires_grad_()
    (of_x,) = torch.autograd.grad(fb.fake_quantize(x, "ternary_tensor", scale_rule="twn").sum(), x)
    assert torch.equal(of_x, torch.ones(2, 9))


@pytest.mark.parametrize("rule", ["absmean", "twn"])
def test_a_value_that_is_not_finite_spoils_its_line_alone(rule: str) -> None:
    x = torch.ones(3, 8)
    x[1, 2] = torch.nan
    y = fb.fake_quantize(x, "ternary_channel", scale_rule=rule)
    assert y[1].isnan().all()
    assert (y[::2] == 1).all()


def test_formats_without_such_a_scale_are_refused() -> None:
    x = np.ones((2, 32))
    for name in ("ternary", "mxfp4", "int8_channel", "nvfp4", "block(element=ternary,scale=fp16,size=16)"):
        with pytest.raises(ArgumentError, match="chooses float32 scales of ternary"):
            fb.fake_quantize(x, name, scale_rule="absmean")
    with pytest.raises(ArgumentError, match="float32 scales of ternary values; binary_channel"):
        fb.quantize(x, "binary_channel", scale_rule="twn")
    with pytest.raises(ArgumentError, match="mean of all values and not the largest: leave amax out"):
        fb.quantize(x, "ternary_tensor", scale_rule="twn", amax=2.0)
