"""One format for everything that is multiplied."""

import pytest

from fewbits.errors import FormatError
from fewbits.formats import CATALOGUE, parse
from fewbits.kernels import has_scale_rule
from fewbits.recipes import RECIPES, uniform_recipe


@pytest.mark.parametrize("name", CATALOGUE)
def test_every_format_is_a_recipe(name: str) -> None:
    if name == "fp32":
        assert uniform_recipe(name) == RECIPES["fp32"]
        return
    found = uniform_recipe(name)
    assert {how.format for how in found.operands.values()} == {CATALOGUE[name].format}
    rules = {role: how.scale_rule for role, how in found.operands.items()}
    wanted = "rceil" if has_scale_rule(CATALOGUE[name].format) else "floor"
    assert {rules.pop("dw_gradient"), rules.pop("dx_gradient")} == {wanted}
    assert set(rules.values()) == {"floor"}
    assert not found.logit_gradient
    assert (found.vector, found.parameter, found.scaling) == ("fp32", None, None)


def test_a_text_is_read_and_a_wrong_one_refused() -> None:
    assert uniform_recipe("float(e=3,m=4)").forward_weight.format == parse("float(e=3,m=4)")
    with pytest.raises(FormatError, match="nearest are"):
        uniform_recipe("mxfp5")
