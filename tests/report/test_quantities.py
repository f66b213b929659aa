import math

import pytest

from fewbits.report import quantities as q


@pytest.mark.parametrize(
    ("count", "text"),
    [
        (0, "0 B"),
        (1023, "1023 B"),
        (1024, "1.00 KiB"),
        (1536, "1.50 KiB"),
        (10 * 1024, "10.0 KiB"),
        (1023.4 * 1024, "1023 KiB"),
        (1023.6 * 1024, "1.00 MiB"),
        (5 * 1024**3, "5.00 GiB"),
        (3000 * 1024**5, "3000 PiB"),
    ],
)
def test_sizes_have_three_digits_and_the_unit_that_fits(count: float, text: str) -> None:
    assert q.size(count) == text


@pytest.mark.parametrize(
    ("fraction", "text"),
    [(0.0, "0"), (1e-9, "<0.01"), (0.0123, "1.23"), (0.5, "50.0"), (1.0, "100.0"), (math.nan, "n/a")],
)
def test_a_percentage_never_rounds_something_to_nothing(fraction: float, text: str) -> None:
    assert q.percent(fraction) == text


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0.0, "0"),
        (-0.0, "0"),
        (0.00001, "0.0000"),
        (-0.00001, "0.0000"),
        (-0.25, "-0.2500"),
        (math.nan, "NaN"),
    ],
)
def test_a_difference_has_a_sign_only_where_it_shows_a_digit(value: float, text: str) -> None:
    assert q.signed(value, 4) == text


@pytest.mark.parametrize("value", [1e9, 3.14159e30, 1e300, 1.7e308])
def test_a_number_that_no_table_has_room_for_has_an_exponent(value: float) -> None:
    for text in (q.plain(value, 4), q.signed(-value, 4), q.margin(value, 2), q.three_digits(value)):
        assert len(text) <= 11
        assert abs(float(text)) == pytest.approx(value, rel=1e-2)
    assert q.plain(999_999_999.0, 1) == "999999999.0"
    assert [f(math.inf, 2) for f in (q.plain, q.signed, q.margin)] == ["inf", "+inf", "inf"]


def test_infinite_and_missing_values_say_what_they_mean() -> None:
    assert [q.decibels(v) for v in (math.inf, -math.inf, math.nan, 20.04)] == ["exact", "-inf", "n/a", "20.0"]
    assert [q.condition(v) for v in (math.inf, 1234.5)] == ["singular", "1.23e+03"]
    assert q.plain(math.nan, 2) == "NaN"
    assert q.shape(()) == "scalar"
    assert q.shape((3, 4)) == "3x4"


@pytest.mark.parametrize(
    ("name", "shown"),
    [
        ("blocks.0.größe", "blocks.0.größe"),
        ("\x1b[2Jgone", r"\x1b[2Jgone"),
        ("two\nlines", r"two\nlines"),
        ("\u202eright to left", r"\u202eright to left"),
        ("lone \ud800 surrogate", r"lone \ud800 surrogate"),
    ],
)
def test_characters_that_do_not_show_are_written_out(name: str, shown: str) -> None:
    assert q.visible(name) == shown
    assert q.visible(name).encode()
