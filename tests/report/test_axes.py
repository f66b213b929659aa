import itertools
import math

import pytest

from fewbits.report.page.axes import Axis, difference_axis, linear_axis, log_axis

AXES = [
    difference_axis("nats", [-0.00002, 0.0002, 0.19], 0.005),
    difference_axis("points", [-60.0, 0.1], 0.5),
    difference_axis("one seed", [0.01, 2.0], 0.0),
    difference_axis("nothing", [0.0, math.nan], 0.0),
]


def ticks(axis: Axis) -> list[tuple[float, str]]:
    settings = dict(axis.settings)
    return list(zip(settings["tickvals"], settings["ticktext"], strict=True))


@pytest.mark.parametrize("axis", AXES, ids=lambda axis: axis.title)
def test_ticks_are_in_order_and_leave_the_texts_of_a_phone_room(axis: Axis) -> None:
    places = [place for place, _ in ticks(axis)]
    assert 2 <= len(places) <= 6
    assert all(b - a > 0.2 * (places[-1] - places[0]) for a, b in itertools.pairwise(places))


@pytest.mark.parametrize("axis", AXES, ids=lambda axis: axis.title)
def test_the_text_of_a_tick_is_its_value(axis: Axis) -> None:
    for place, text in ticks(axis):
        assert axis.place(float(text.replace("−", "-"))) == pytest.approx(place, rel=1e-5)


def test_a_difference_keeps_its_sign_and_zero_its_place() -> None:
    axis = difference_axis("nats", [-0.01, 0.5], 0.005)
    assert axis.place(0.0) == 0.0
    assert axis.place(-0.2) == -axis.place(0.2)
    assert axis.place(0.001) == pytest.approx(0.2, rel=0.01)  # linear within the spread
    assert axis.place(50.0) - axis.place(5.0) == pytest.approx(math.log(10), rel=0.01)  # logarithmic beyond


def test_a_reversed_axis_differs_in_its_direction_only() -> None:
    axis = linear_axis("dB")
    assert axis.reversed().settings == (("autorange", "reversed"),)
    assert (axis.reversed().title, axis.reversed().place) == (axis.title, axis.place)


@pytest.mark.parametrize(
    ("values", "step"),
    [([1e-7, 0.3], None), ([1e-3, 0.3], 1), ([0.01, 0.3], "D2"), ([0.3], None), ([0.0, math.nan], None)],
)
def test_ticks_of_some_decades_are_few(values: list[float], step: object) -> None:
    assert dict(log_axis("error", values).settings).get("dtick") == step
