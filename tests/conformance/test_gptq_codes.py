"""GPTQ gives the codes of llm-compressor's, for the same weights and inputs; gptq_codes.py wrote them."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from fewbits.formats import parse, values
from fewbits.ptq.gptq import gptq
from fewbits.ptq.grid import Grid

DOCUMENT = json.loads(Path(__file__).with_name("gptq_codes.json").read_text("utf-8"))
ROWS = 8
ELEMENTS = {"int4_group32": "int4", "int8_channel": "int8", "mxfp4": "fp4_e2m1"}


def floats(text: str) -> Tensor:
    return torch.from_numpy(np.frombuffer(bytes.fromhex(text), np.float32).copy()).reshape(ROWS, -1)


WEIGHTS = floats(DOCUMENT["weights"])
INPUTS = torch.from_numpy(np.frombuffer(bytes.fromhex(DOCUMENT["inputs"]), np.int16).copy())
INPUTS = INPUTS.reshape(-1, WEIGHTS.shape[1]).double()


def chosen(case: Any, hessian: Tensor) -> tuple[Tensor, Tensor]:
    """The values that fewbits chooses, over their scales, and those expected."""
    element = parse(ELEMENTS[case["case"]]).element
    scales = floats(case["scales"]).double()
    scales = scales.repeat_interleave(WEIGHTS.shape[1] // scales.shape[1], 1)
    grid = Grid(element, scales, torch.zeros_like(scales), element.max)
    found = gptq(WEIGHTS.double(), hessian, grid.nearest) / scales
    table = torch.from_numpy(values(element).astype(np.float64))
    codes = torch.from_numpy(np.frombuffer(bytes.fromhex(case["codes"]), np.uint8).copy()).long()
    return found, table[codes].reshape(found.shape)


@pytest.mark.parametrize("case", DOCUMENT["cases"], ids=lambda c: c["case"])
def test_the_codes_are_those_of_llm_compressor(case: Any) -> None:
    found, expected = chosen(case, INPUTS.T @ INPUTS)
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-9)


@pytest.mark.parametrize("case", DOCUMENT["cases"], ids=lambda c: c["case"])
def test_moments_in_another_order_give_others(case: Any) -> None:
    rolled = INPUTS.roll(1, 1)
    found, expected = chosen(case, rolled.T @ rolled)
    assert ((found - expected).abs() > 1e-6).double().mean() > 0.1
