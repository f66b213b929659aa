"""The definition of error feedback, by hand and against exact sums."""

from fractions import Fraction

import numpy as np
import pytest

from fewbits.formats import parse
from fewbits.kernels.bits.options import options
from fewbits.kernels.reference import dequantize
from fewbits.kernels.reference.feedback.feedback import quantize_with_feedback


def test_a_step_by_hand() -> None:
    fmt = parse("fixed(8,frac=0)")
    x, residual = np.float32([1.25, -2.0, 300.0, 0.0]), np.float32([0.5, 0.25, 0.0, -0.25])
    parts, left = quantize_with_feedback(x, residual, fmt, options(fmt))
    assert dequantize(parts, fmt, np.float32).tolist() == [2, -2, 127, 0]
    assert left.tolist() == [-0.25, 0.25, 173, -0.25]


def test_nothing_is_left_of_what_is_not_finite() -> None:
    fmt = parse("mxfp4")
    x = np.zeros(64, np.float32)
    x[[3, 40]] = np.nan, 5
    parts, left = quantize_with_feedback(x, np.ones(64, np.float32), fmt, options(fmt))
    assert np.isnan(dequantize(parts, fmt, np.float32)[:32]).all()  # the block of the NaN
    assert left[:32].tolist() == [0] * 32
    assert left[32:].tolist() == (x[32:] + 1 - dequantize(parts, fmt, np.float32)[32:]).tolist()


@pytest.mark.parametrize("name", ["mxfp4", "mx6", "fp8_e5m2"])
def test_what_is_sent_and_what_is_left_add_up_to_what_was_given(name: str) -> None:
    """Multiples of 2^-12 below 2^11 are exact in float32, as are their sums and differences here."""
    fmt, rng = parse(name), np.random.default_rng(0)
    residual = np.zeros(96, np.float32)
    given, sent = [Fraction(0)] * 96, [Fraction(0)] * 96
    for _ in range(10):
        x = (rng.integers(-4096, 4096, 96) / 4096).astype(np.float32)
        parts, residual = quantize_with_feedback(x, residual, fmt, options(fmt))
        values = dequantize(parts, fmt, np.float32)
        given = [a + Fraction(float(b)) for a, b in zip(given, x, strict=True)]
        sent = [a + Fraction(float(b)) for a, b in zip(sent, values, strict=True)]
    assert [a + Fraction(float(b)) for a, b in zip(sent, residual, strict=True)] == given
