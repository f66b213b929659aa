"""Products of matrices that are rounded to the format of a factor: how ties are rounded, by hand."""

import pytest
import torch

from fewbits.solvers.dense.rounded_products import rounded_product

TIES = {"tf32": 2.0**-11, "fp16": 2.0**-11}  # half of a unit in the last place of 1
ROUNDED = {"tf32": 1 + 2.0**-10, "fp16": 1.0}  # tensor cores take ties of TF32 away from zero


@pytest.mark.parametrize("factor", TIES)
def test_both_operands_are_rounded_as_the_hardware_rounds_the_format(factor: str) -> None:
    tie, identity = torch.full((1, 1), 1 + TIES[factor]), torch.ones(1, 1)
    multiply = rounded_product(factor)
    assert multiply(tie, identity).item() == ROUNDED[factor]
    assert multiply(identity, tie).item() == ROUNDED[factor]
    assert multiply(tie, tie).item() == ROUNDED[factor] ** 2
