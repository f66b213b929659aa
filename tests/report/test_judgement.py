import math
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fewbits.errors import ArgumentError
from fewbits.records import TaskScore
from fewbits.report import judgement as j
from tests.report import fake


def of(task: str, name: str) -> TaskScore:
    return next(s for s in fake.tasks() if (s.task, s.format) == (task, name))


def test_fp32_comes_first_and_then_few_bits_before_many() -> None:
    groups = j.by_task(list(reversed(fake.tasks())))
    assert list(groups) == ["digits", "bytes"]
    for group in groups.values():
        assert group[0].format == "fp32"
        widths = [s.bits_per_value for s in group[1:]]
        assert widths == sorted(widths)


def test_a_difference_is_marked_only_beyond_the_seed_spread() -> None:
    inside, outside = of("bytes", "mxfp6_e2m3"), of("bytes", "mxfp4")
    assert abs(inside.difference) < inside.spread < outside.difference
    assert not j.beyond_spread(inside)
    assert j.beyond_spread(outside)
    assert j.beyond_spread(replace(inside, values=(math.nan,) * 3))


def test_one_seed_marks_nothing_and_says_why() -> None:
    scores = fake.tasks(1)
    assert not any(j.beyond_spread(s) for s in scores)
    assert "One seed ran" in j.spread_sentence(scores)
    assert j.narrowest_sentence(scores) == ""


def test_the_sentences_name_the_spread_and_the_narrowest_format_within_it() -> None:
    scores = j.by_task(fake.tasks())["bytes"]
    assert "moves by 0.0053 nats/byte over 3 seeds" in j.spread_sentence(scores)
    assert j.narrowest_sentence(scores) == "Narrowest format within it: mxfp6_e2m3, 6.25 bits per value."
    broken = [replace(s, values=(9.0, 9.0, 9.0)) for s in scores]
    assert j.narrowest_sentence(broken) == "No format narrower than FP32 stays within it."
    assert j.narrowest_sentence(scores[:1]) == ""


def test_quality_is_higher_for_what_is_better_on_both_metrics() -> None:
    for task in ("bytes", "digits"):
        assert j.quality(of(task, "mx4")) < j.quality(of(task, "mxfp4")) < 0


def test_unknown_metrics_and_empty_reports_are_refused_in_a_sentence() -> None:
    with pytest.raises(ArgumentError, match="'bytes' has the metric 'bleu': expected one of nll, accuracy"):
        j.metric_of(replace(of("bytes", "mx4"), metric="bleu"))
    for group in (j.by_task, j.by_matrix):
        with pytest.raises(ArgumentError, match="a report of no scores"):
            group([])


def test_the_total_says_what_the_checkpoint_would_weigh() -> None:
    report = fake.checkpoint()
    assert (
        j.totals_sentence(report)
        == "The whole checkpoint would weigh 361 MiB instead of 938 MiB, 2.60 times less."
    )
    assert "times less" not in j.totals_sentence(replace(report, tensors=report.tensors[-1:]))


points = st.lists(st.tuples(st.integers(0, 5).map(float), st.integers(0, 5).map(float)), max_size=12)


def beats(a: tuple[float, float], b: tuple[float, float]) -> bool:
    return a[0] <= b[0] and a[1] >= b[1] and a != b


@given(points)
def test_the_front_is_exactly_what_nothing_beats(given_points: list[tuple[float, float]]) -> None:
    expected = {i for i, p in enumerate(given_points) if not any(beats(other, p) for other in given_points)}
    front = j.pareto_front(given_points)
    assert set(front) == expected
    assert [given_points[i][0] for i in front] == sorted(given_points[i][0] for i in front)


def test_a_nan_is_never_on_the_front() -> None:
    assert j.pareto_front([(4.0, math.nan), (8.0, 1.0), (math.nan, 9.0)]) == [1]
