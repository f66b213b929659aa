"""The definition of sums and counts of errors, against exact sums by hand."""

from math import fsum

import numpy as np
import pytest

from fewbits.kernels.bits.error_sums import ErrorSums, part_of
from fewbits.kernels.reference.tally.tally import tally
from tests import cases


def test_sums_and_counts_of_a_line_by_hand() -> None:
    x = np.array([[4.0, -2.0, 0.5, 0.0, 8.0, np.inf, np.nan]])
    y = np.array([[4.0, -3.0, 0.0, 1.0, 6.0, 5.0, 5.0]])
    assert tally(x, y, 6.0, 8) == ErrorSums(
        signal=16 + 4 + 0.25 + 64,
        noise=1 + 0.25 + 1 + 4,  # a zero that became something is noise
        relative=0.5 + 1 + 0.25,
        largest_relative=1,
        nonzero=4,
        flushed=1,
        saturated=1,
    )


def test_an_ulp_beyond_the_limit_is_not_saturation() -> None:
    x = np.array([[np.nextafter(np.float32(6), np.float32(7)), 6.0, 6.001]])
    assert tally(x, x, 6.0, 8).saturated == 1
    assert tally(x, x, np.array([[5.0, np.nan, 5.0]]), 8).saturated == 2


@pytest.mark.parametrize("shape", [(1, 100_000), (311, 97), (5000, 3), (0, 4), (4, 0)])
def test_sums_are_those_of_exact_arithmetic_to_13_digits(shape: tuple[int, int]) -> None:
    rng = np.random.default_rng(0)
    x = rng.standard_normal(shape) * np.exp2(rng.uniform(-20, 20, shape))
    y = np.where(rng.random(shape) < 0.2, 0, x * rng.uniform(0.9, 1.1, shape))
    found = tally(x, y, 100.0, 2048)
    assert found.signal == pytest.approx(fsum((x * x).flat), rel=1e-13)
    assert found.noise == pytest.approx(fsum(((y - x) ** 2).flat), rel=1e-13)
    assert found.relative == pytest.approx(fsum((np.abs(y - x) / np.abs(x)).flat), rel=1e-13)
    assert found.flushed == np.count_nonzero(y == 0)


def test_how_lines_are_cut_shows_in_the_last_bits_only() -> None:
    x = np.random.default_rng(1).standard_normal((64, 640))
    whole, cut = (tally(x.reshape(shape), x.reshape(shape) * 0.9, 1.0, 2048) for shape in ((1, -1), x.shape))
    assert whole.signal != cut.signal  # the control: the order is part of the definition
    assert whole.signal == pytest.approx(cut.signal, rel=1e-13)
    assert whole[4:] == cut[4:]


def test_sums_of_pieces_are_added() -> None:
    a, b = ErrorSums(1, 2, 3, 0.5, 4, 5, 6), ErrorSums(10, 20, 30, 0.25, 40, 50, 60)
    assert a.add(b) == ErrorSums(11, 22, 33, 0.5, 44, 55, 66)


def test_parts_hold_whole_lanes_and_whole_blocks() -> None:
    for fmt in cases.FORMATS:
        part, sizes = part_of(fmt), [g.size for g in fmt.groups.shared if isinstance(g.size, int)]
        assert part is None or (part % 8 == 0 and part <= 2048 and not any(part % size for size in sizes))
        assert (part is None) == (max(sizes, default=1) > 256)
