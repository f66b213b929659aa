"""A recipe in words, by hand."""

import pytest

from fewbits.recipes import RECIPES
from fewbits.recipes.summary import in_words

WORDS = {
    "fp32": "nothing",
    "amp-bf16": "torch.autocast to bf16",
    "fp16-master": "vectors fp16; parameter fp16; fp32 master copy; loss scale dynamic, from 65536",
    "mxfp6-finetune": "weights mxfp6_e3m2 (forward only); activations mxfp6_e3m2 (forward only); "
    "vectors bf16",
    "bf16-only": "vectors bf16; parameter bf16; held gradient bf16; first moment bf16; second moment bf16; "
    "update stochastic",
    "posit8": "weights posit8_1/shift=2; activations posit8_1/shift=2; gradients posit8_2/shift=2; "
    "schedule warm_up",
    "muppet": "schedule muppet",
}


@pytest.mark.parametrize("name", WORDS)
def test_a_recipe_says_what_is_narrow_and_nothing_else(name: str) -> None:
    assert in_words(RECIPES[name]) == WORDS[name]


def test_a_recipe_prints_its_fields_in_columns() -> None:
    assert repr(RECIPES["fp16-no-master"]).splitlines() == [
        "fp16-no-master",
        "  paper      Micikevicius et al., Mixed Precision Training, ICLR 2018",
        "  vector     fp16",
        "  parameter  fp16",
        "  scaling    dynamic, from 65536",
    ]
