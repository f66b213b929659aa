"""Counts that are none are told by name, before anything is trained."""

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest

from fewbits.compare import compare_codecs, compare_models, prune_task
from fewbits.errors import ArgumentError
from fewbits.train.tasks import task

MODELS = partial(compare_models, ("digits",), ("mxfp4",))
CODECS = partial(compare_codecs, ("digits",), ("mxfp4",))


def prune(**given: Any) -> object:
    return prune_task(task("digits", "small"), "2:4", **given)


@pytest.mark.parametrize("number", [0, -1, 1.5, "2", True, None])
@pytest.mark.parametrize(
    ("call", "name"), [(MODELS, "seeds"), (CODECS, "seeds"), (CODECS, "processes"), (prune, "seeds")]
)
def test_what_is_no_count_is_refused_by_name(call: Callable[..., object], name: str, number: Any) -> None:
    with pytest.raises(ArgumentError, match=rf"{name}='{number}'; expected a whole number from 1 up"):
        call(**{name: number})


@pytest.mark.parametrize("call", [CODECS, prune])
@pytest.mark.parametrize("number", [-1, 2.0])
def test_steps_are_a_whole_number_from_zero_up(call: Callable[..., object], number: Any) -> None:
    with pytest.raises(ArgumentError, match=rf"steps='{number}'; expected a whole number from 0 up"):
        call(steps=number)


@pytest.mark.parametrize("given", [{"links": ("10",)}, {"latency_us": "10"}])
def test_what_is_no_speed_is_refused_by_name(given: dict[str, Any]) -> None:
    (name,) = given
    with pytest.raises(ArgumentError, match=f"{name}='10'; expected a number"):
        CODECS(**given)
