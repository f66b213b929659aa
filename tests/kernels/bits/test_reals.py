"""The types in which numbers come and go, against ml_dtypes and NumPy on every boundary."""

import ml_dtypes
import numpy as np
import pytest

from fewbits.kernels.bits.reals import BFLOAT16, largest_finite, rounded_to_dtype, widened, without_infinity
from tests import cases

HALVES = np.arange(2**16, dtype=np.uint16)


def boundaries(every: cases.Singles) -> cases.Singles:
    """Return all values of a type, the middles between them, and their neighbours in float32."""
    numbers = np.unique(every[np.isfinite(every)].astype(np.float64))
    middles = (numbers[1:] + numbers[:-1]) / 2
    beyond = numbers[-1] + (numbers[-1] - numbers[-2]) / 2
    with np.errstate(over="ignore"):
        wide = cases.around(np.concatenate([numbers, middles, [beyond]]))
    return np.append(wide, np.float32([np.inf, -np.inf, np.nan, -0.0]))


def test_bfloat16_is_widened_as_ml_dtypes_does() -> None:
    theirs = HALVES.view(ml_dtypes.bfloat16).astype(np.float32)
    ours = widened(HALVES)
    assert ours.dtype == np.float32
    here = ~np.isnan(theirs)
    assert np.array_equal(np.isnan(ours), ~here)
    assert np.array_equal(ours[here].view(np.uint32), theirs[here].view(np.uint32))


def test_bfloat16_is_narrowed_as_ml_dtypes_does_on_every_boundary() -> None:
    x = boundaries(cases.every_bfloat16())
    with np.errstate(over="ignore"):
        theirs = x.astype(ml_dtypes.bfloat16)
    ours = rounded_to_dtype(x, BFLOAT16)
    nan = np.isnan(x)
    assert np.array_equal(ours[~nan], theirs[~nan].view(np.uint16))
    assert (ours[nan] == 0x7FC0).all()


def test_float16_is_widened_and_narrowed_as_numpy_does_on_every_boundary() -> None:
    x = boundaries(cases.every_float16())
    with np.errstate(over="ignore"):
        theirs = x.astype(np.float16)
    here = ~np.isnan(x)
    assert np.array_equal(rounded_to_dtype(x, np.float16)[here].view(np.uint16), theirs[here].view(np.uint16))
    assert np.isnan(rounded_to_dtype(x, np.float16)[~here]).all()
    halves = HALVES.view(np.float16)
    assert np.array_equal(widened(halves), halves.astype(np.float32), equal_nan=True)


@pytest.mark.parametrize("dtype", [np.float16, BFLOAT16], ids=str)
def test_what_was_widened_is_narrowed_back_to_itself(dtype: np.dtype) -> None:
    halves = HALVES.view(dtype)
    wide = widened(halves)
    here = ~np.isnan(wide)
    assert np.array_equal(rounded_to_dtype(wide, dtype)[here].view(np.uint16), HALVES[here])


def test_float64_goes_to_half_precision_by_way_of_float32() -> None:
    past_a_tie = np.array([1 + 2.0**-8 + 2.0**-40, 1 + 2.0**-11 + 2.0**-40])  # ties once they are float32
    assert rounded_to_dtype(past_a_tie[:1], BFLOAT16).tolist() == [0x3F80]
    assert rounded_to_dtype(past_a_tie[1:], np.float16).tolist() == [1.0]
    assert rounded_to_dtype(past_a_tie, np.float64) is past_a_tie
    assert widened(past_a_tie) is past_a_tie


@pytest.mark.parametrize(
    ("dtype", "top"),
    [
        (np.float16, 65504.0),
        (BFLOAT16, float(ml_dtypes.finfo(ml_dtypes.bfloat16).max)),
        (np.float32, float(np.finfo(np.float32).max)),
        (np.float64, float(np.finfo(np.float64).max)),
    ],
    ids=str,
)
def test_infinity_becomes_the_largest_value_of_the_type_it_came_in(dtype: np.dtype, top: float) -> None:
    assert largest_finite(dtype) == top
    x = rounded_to_dtype(np.array([np.inf, -np.inf, np.nan, 1.5, -0.0]), dtype)
    assert without_infinity(x).tolist() == [top, -top, 0, 1.5, 0]
