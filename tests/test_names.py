"""Which modules a user's patterns mean."""

from typing import Any

import pytest

from fewbits.errors import ArgumentError
from fewbits.names import check_fits, listed, with_shared, within

NAMES = ["", "embed", "blocks", "blocks.0", "blocks.0.mlp", "blocks.1", "head"]


def test_one_pattern_is_a_list_of_one() -> None:
    assert listed("include", "head") == ("head",)
    assert listed("include", ["a", "b"]) == ("a", "b")


@pytest.mark.parametrize("given", [3, None, ["head", 3], [None], [("head",)]])
def test_what_is_no_pattern_is_refused(given: Any) -> None:
    with pytest.raises(ArgumentError, match=r"exclude has .* where a pattern of names was expected"):
        listed("exclude", given)


@pytest.mark.parametrize(
    ("chosen", "meant"),
    [
        (["blocks.0"], ["blocks.0", "blocks.0.mlp"]),
        (["*.mlp", "head"], ["blocks.0.mlp", "head"]),
        (["blocks.?"], ["blocks.0", "blocks.0.mlp", "blocks.1"]),
        (["*"], NAMES),
        ([""], [""]),
        ([], []),
    ],
)
def test_a_pattern_means_modules_and_what_lies_within(chosen: Any, meant: Any) -> None:
    assert [name for name in NAMES if within(name, chosen)] == meant


@pytest.mark.parametrize(
    ("chosen", "more"),
    [
        (["decoder"], ["embed", "layer?[[]0]"]),
        (["decoder.layer"], ["layer?[[]0]"]),
        (["*.embed", "head"], ["embed"]),
        (["*"], []),
        (["embed"], []),
        (["head"], []),
    ],
)
def test_a_pattern_means_a_shared_module_by_each_of_its_names(chosen: Any, more: Any) -> None:
    embed, layer = object(), object()
    named = {"": object(), "embed": embed, "layer?[0]": layer, "head": object()}
    named |= {"decoder": object(), "decoder.embed": embed, "decoder.layer": layer}
    found = with_shared(chosen, named.items())
    assert found == (*chosen, *(name.replace("?", "[?]") for name in more))
    assert all(within(name, found) for name in named if name and name.startswith(tuple(chosen)))


def test_a_pattern_that_fits_nothing_is_refused_with_names_that_are_there() -> None:
    check_fits("exclude", ["head", "blocks.*"], NAMES)
    with pytest.raises(ArgumentError, match="exclude='tail' fits no module; the first of them are embed, bl"):
        check_fits("exclude", ["head", "tail"], NAMES)
