import itertools
import math

import pytest

from fewbits.report import axes

AXES = [
    axes.log2_axis("bits", [4.0, 4.25, 16.0], "{:g}".format),
    axes.log2_axis("bits", [8.0], "{:g}".format),
    axes.log2_axis("size", [1e6, 3e9], "{:g}".format, least_gap=0.2),
    axes.log10_axis("error", [1e-7, 0.3]),
    axes.log10_axis("error", [0.3]),
    axes.linear_axis("dB", [-3.0, 71.0]),
    axes.linear_axis("dB", []),
    axes.difference_axis("nats", [-0.00002, 0.0002, 0.19], 0.005),
    axes.difference_axis("points", [-60.0, 0.1], 0.5),
    axes.difference_axis("one seed", [0.01, 2.0], 0.0),
    axes.difference_axis("nothing", [0.0, math.nan], 0.0),
]


@pytest.mark.parametrize("axis", AXES, ids=lambda axis: axis.title)
def test_ticks_lie_inside_the_axis_in_order_and_apart(axis: axes.Axis) -> None:
    places = [axis.place(value) for value, _ in axis.ticks]
    assert len(places) >= 2
    assert all(axis.low <= place <= axis.high for place in places)
    assert places == sorted(places)
    assert all(b - a > 0.009 * (axis.high - axis.low) for a, b in itertools.pairwise(places))


@pytest.mark.parametrize("axis", AXES, ids=lambda axis: axis.title)
def test_the_text_of_a_tick_is_its_value(axis: axes.Axis) -> None:
    def read(text: str) -> float:
        text = text.replace("−", "-").replace("·", "*").replace("10<sup>", "1e").replace("</sup>", "")
        return math.prod(float(part) for part in text.split("*"))

    for value, text in axis.ticks:
        assert read(text) == pytest.approx(value, rel=1e-5)


def test_a_difference_keeps_its_sign_and_zero_its_place() -> None:
    axis = axes.difference_axis("nats", [-0.01, 0.5], 0.005)
    assert axis.place(0.0) == 0.0
    assert axis.place(-0.2) == -axis.place(0.2)
    assert axis.place(0.001) == pytest.approx(0.2, rel=0.01)  # linear within the spread
    assert axis.place(50.0) - axis.place(5.0) == pytest.approx(math.log(10), rel=0.01)  # logarithmic beyond


def test_a_turned_axis_swaps_its_ends_and_nothing_else() -> None:
    axis = AXES[0]
    assert (axis.turned().low, axis.turned().high) == (axis.high, axis.low)
    assert axis.turned().turned() == axis
