"""Recipes are data: they print, parse and extend."""

import math
from typing import Any

import pytest

from fewbits.errors import ArgumentError, FormatError
from fewbits.formats import parse
from fewbits.recipes import RECIPES, LossScaling, Recipe, RoleFormat, recipe
from fewbits.recipes.recipe import OPERANDS
from fewbits.recipes.role_format import read_role_format


@pytest.mark.parametrize(
    "given",
    ["mxfp6_e3m2", "fp8_e5m2/stochastic", "mxfp4/stochastic/rceil", "posit8_1/shift=2", "ternary_tensor/twn"],
)
def test_a_cast_reads_what_it_prints(given: str) -> None:
    assert str(read_role_format(given)) == given


def test_a_cast_of_a_constructor_keeps_its_slashes_and_brackets() -> None:
    given = "block(element=fp8_e4m3,scale=e8m0,size=tensor)/rceil"
    assert read_role_format(given) == RoleFormat(parse(given[: -len("/rceil")]), scale_rule="rceil")


@pytest.mark.parametrize(
    ("given", "error"),
    [
        ("mxfp4/sideways", FormatError),
        ("mxfp4/shift=x", FormatError),
        ("mxfp4/slope=3", FormatError),
        ("int8/rceil", ArgumentError),
        ("int8_channel/twn", ArgumentError),
    ],
)
def test_a_cast_that_cannot_be_is_refused(given: str, error: type[Exception]) -> None:
    with pytest.raises(error, match=r"sideways|shift=N|scale_rule"):
        read_role_format(given)


def test_no_cast_at_all() -> None:
    assert read_role_format("fp32") is None
    assert read_role_format("-") is None


@pytest.mark.parametrize("name", RECIPES)
def test_every_recipe_prints_its_table_and_names_its_source(name: str) -> None:
    table = repr(RECIPES[name])
    assert table.startswith(name)
    assert "paper" in table
    assert RECIPES[name].paper
    assert recipe(name) is RECIPES[name]


def test_changes_reach_every_operand_of_a_role() -> None:
    found = recipe(
        "mx:weight=mxfp4,gradient=block(element=float(e=2,m=1),scale=e8m0,size=32)/rceil,vector=fp32"
    )
    assert found.forward_weight == found.dx_weight == read_role_format("mxfp4")
    assert str(found.dw_gradient) == "mxfp4/rceil"
    assert found.forward_activation is None
    assert found.vector == "fp32"
    assert recipe("mxfp4:logit_gradient=yes").logit_gradient
    assert recipe(found) is found


def test_microscaling_never_clamps_gradients() -> None:
    """The rule floor makes training diverge where the batch is a power of two."""
    for name in ("mxfp8", "mxfp6", "mxfp4w-mxfp6", "mxfp4", "mxint8"):
        found = RECIPES[name]
        assert found.dx_gradient is not None
        assert found.dx_gradient.scale_rule == "rceil"
    for name in ("mx9", "mx6", "mx4", "mxfp4"):
        assert not RECIPES[name].logit_gradient


@pytest.mark.parametrize(("text", "value"), [("yes", True), ("true", True), ("no", False), ("false", False)])
def test_a_role_that_is_on_or_off_takes_either_word(text: str, value: bool) -> None:
    assert recipe(f"mxfp6:keep_first={text},logit_gradient={text}").keep_first is value
    assert recipe(f"mxfp6:keep_first={text},logit_gradient={text}").logit_gradient is value


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ("mxfp5", "the nearest are [a-z0-9-]+, [a-z0-9-]+, [a-z0-9-]+; "),
        ("mxfp6:weight", "ROLE=FORMAT"),
        ("mxfp6:colour=blue", "has no 'colour'"),
        ("mxfp6:vector=fp8", "vector='fp8'"),
        ("fp32:autocast=fp8", "autocast='fp8'"),
        ("amp-bf16:weight=mxfp4", "autocast=bf16 in recipe .*, which changes layers itself"),
        ("amp-fp16:parameter=fp16", "autocast would change none of their products"),
        ("mxfp6:autocast=bf16", "leave it out, as with vector=bf16, or take it alone"),
        ("mxfp6:keep_first=maybe", "expected yes or no"),
        ("fp16-master:scaling=large", "none, dynamic or a number"),
        ("mxfp6:name=mine", "has no 'name'"),
        ("mxfp6:weight=nothing", "there is no format"),
        ("mxfp6:weight=mxfp4,weight=mxfp8", "weight is there twice"),
        ("mxfp6:weight=mxfp4/stochastic/rceil/nearest_even", "'nearest_even' .* is a second rounding"),
        ("mxfp6:weight=mxfp4/floor/rceil", "'rceil' .* is a second scale rule"),
        ("mxfp6:weight=posit8_1/shift=--2", "'shift=--2' .* not shift=N"),
        ("mxfp6:parameter=bf16,master=bf16", "keeps no master copy; add has_master=yes"),
        ("mxfp6:update=kahan", "update=kahan .* holds no parameter in fewer bits; add parameter=FORMAT"),
        ("fp16-master:update=stochastic", "adds updates to a master copy; add has_master=no"),
        ("bf16-only:update=kahan,has_master=yes", "adds updates to a master copy"),
        ("fp16-master:scaling=0", "a loss scale of 0; expected a finite number above 0"),
        ("fp16-master:scaling=1e400", "a loss scale of inf"),
    ],
)
def test_a_text_that_is_no_recipe_is_refused(given: str, said: str) -> None:
    with pytest.raises((ArgumentError, FormatError), match=said):
        recipe(given)


@pytest.mark.parametrize("given", [None, 3, b"mxfp6", ["mxfp6"], parse("mxfp6_e3m2")])
def test_what_is_neither_a_text_nor_a_recipe_is_refused(given: Any) -> None:
    with pytest.raises(ArgumentError, match=r"expected a text, as 'mxfp6', or a fewbits.recipes.Recipe"):
        recipe(given)


@pytest.mark.parametrize(
    "role", ["gradient", "activation", "dx_weight", "parameter", "held_gradient", "master"]
)
@pytest.mark.parametrize("value", [3, b"mxfp4", True, parse("mxfp6_e3m2")])
def test_a_role_that_is_no_format_of_one_is_refused(role: str, value: Any) -> None:
    field = {"gradient": "dw_gradient", "activation": "forward_activation"}.get(role, role)
    with pytest.raises(
        ArgumentError, match=rf"{field}=.* in recipe 'x'; expected a fewbits.recipes.RoleFormat"
    ):
        recipe("fp8-lm").extended("x", **{role: value})
    with pytest.raises(ArgumentError, match=f"{field}=.* in recipe 'x'; expected"):
        Recipe("x", **{field: value})


def test_an_update_that_rounds_something_is_taken_and_one_to_nearest_always_is() -> None:
    assert recipe("mxfp6:parameter=bf16,update=kahan").update == "kahan"
    assert recipe("fp16-master:update=stochastic,has_master=no").update == "stochastic"
    for name in ("fp32", "fp16-master", "bf16-only"):
        assert recipe(f"{name}:update=nearest").update == "nearest"
    # What was not asked for is not refused.
    assert RECIPES["bf16-only"].extended(parameter=None).update == "stochastic"
    assert recipe("bf16-only:has_master=yes").update == "stochastic"
    with pytest.raises(ArgumentError, match="holds no parameter in fewer bits"):
        RECIPES["bf16-only"].extended(parameter=None, update="stochastic")


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"dynamic": "no"}, "dynamic='no'"),
        ({"growth_factor": 1.0}, r"growth_factor=1\.0; expected a finite number above 1"),
        ({"growth_factor": math.nan}, "growth_factor=nan"),
        ({"backoff_factor": 1.0}, r"backoff_factor=1\.0"),
        ({"backoff_factor": 0}, "backoff_factor=0"),
        ({"growth_interval": 0}, "growth_interval=0; expected 1 step or more"),
        ({"growth_interval": 2.5}, "growth_interval=2.5"),
        ({"floors": ((3, 8.0), (5, math.inf))}, r"floors with \(5, inf\)"),
        ({"floors": ((-1, 8.0),)}, r"floors with \(-1, 8\.0\)"),
        ({"floors": ((1.5, 8.0),)}, r"floors with \(1\.5, 8\.0\)"),
        ({"floors": ((3,),)}, r"floors with \(3,\); expected pairs"),
        ({"floors": 8.0}, r"floors with 8\.0; expected pairs"),
        ({"floors": ((3, "8"),)}, r"floors with \(3, '8'\)"),
        ({"init_scale": "1024"}, "a loss scale of '1024'; expected a finite number above 0"),
        ({"init_scale": None}, "a loss scale of None"),
        ({"growth_factor": "2"}, "growth_factor='2'"),
        ({"backoff_factor": None}, "backoff_factor=None"),
    ],
)
def test_a_loss_scale_that_could_not_move_so_is_refused(given: dict[str, Any], said: str) -> None:
    with pytest.raises(ArgumentError, match=said):
        LossScaling(**given)


def test_floors_in_lists_are_those_in_tuples() -> None:
    listed: Any = [[3, 8.0], [5, 16.0]]
    scaling = LossScaling(floors=listed)
    assert scaling == LossScaling(floors=((3, 8.0), (5, 16.0)))
    assert hash(recipe("mxfp6").extended(scaling=scaling)) == hash(
        recipe("mxfp6").extended(scaling=LossScaling(floors=((3, 8.0), (5, 16.0))))
    )


def test_formats_with_brackets_in_brackets_and_scalings_are_read() -> None:
    found = recipe(
        "mx:weight=block(element=float(e=2,m=1),scale=float(e=4,m=3,special=fn),size=16),vector=fp32"
    )
    assert found.forward_weight is not None
    assert found.vector == "fp32"
    assert recipe("fp16-master:scaling=1024").scaling == LossScaling(1024.0, dynamic=False)
    assert recipe("fp16-master:scaling=2.5e-1").scaling == LossScaling(0.25, dynamic=False)
    assert recipe("fp16-master:scaling=none").scaling is None
    assert recipe("mxfp6:scaling=dynamic").scaling == LossScaling()


def test_recipes_compare_and_hash() -> None:
    assert RECIPES["mxfp6"].extended() == RECIPES["mxfp6"]
    assert len({RECIPES["mxfp6"], RECIPES["mxfp6"].extended(), RECIPES["mx9"]}) == 2
    assert Recipe("own").operands == dict.fromkeys(OPERANDS)
    assert str(LossScaling(1024.0, dynamic=False)) == "static, 1024"
    assert "at least 8192 from step 40000" in str(RECIPES["fp8-stochastic"].scaling)
