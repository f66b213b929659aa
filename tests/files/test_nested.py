"""Nested values as bytes, and back."""

import math
from collections import namedtuple
from typing import Any, cast

import numpy as np
import pytest
import torch

import fewbits as fb
from fewbits.files.nested import from_bytes, to_bytes

DTYPES = [
    *(torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.float8_e4m3fn),
    *(torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8, torch.uint16, torch.bool),
]


def same(a: Any, b: Any) -> bool:
    if type(a) is not type(b):
        return False
    if isinstance(a, (tuple, list)):
        return len(a) == len(b) and all(map(same, a, b))
    if isinstance(a, dict):
        return list(a) == list(b) and all(same(a[key], b[key]) for key in a)
    if isinstance(a, torch.Tensor):
        return a.dtype == b.dtype and a.shape == b.shape and _octets(a) == _octets(b)
    if isinstance(a, (np.ndarray, np.generic)):
        return a.dtype == b.dtype and a.shape == b.shape and a.tobytes() == b.tobytes()
    return a == b or (isinstance(a, float) and math.isnan(a) and math.isnan(b))


def _octets(x: torch.Tensor) -> bytes:
    return x.contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()


VALUES: list[Any] = [
    *(None, True, 3, -(2**70), 0.1, math.inf, -0.0, math.nan, "", "Größe\0", b"", b"\0\xff"),
    *((), [], {}, (1,), [1], {1: 1, "1": 2}),
    *(np.float32(0.5), np.int64(3), np.bool_(True), np.zeros((0, 3), np.float16), np.array(2.5)),
    *(np.arange(6).reshape(2, 3).astype(dtype) for dtype in ("u2", "u8", "i1", "f8", "f2", "?")),
    np.arange(12.0).reshape(3, 4).T,
    (torch.arange(12.0).view(3, 4).t(), {"label": 3, "box": [np.ones(4, np.float32), ("a", None)]}),
    *(torch.ones(shape) for shape in ((), (0,), (2, 0, 3))),
    *(torch.arange(6).view(2, 3).to(dtype) for dtype in DTYPES),
]


@pytest.mark.parametrize("value", VALUES, ids=lambda value: type(value).__name__)
def test_a_value_comes_back_with_its_types_and_bits(value: Any) -> None:
    assert same(from_bytes(to_bytes(value)), value)


def test_what_comes_back_is_its_own() -> None:
    octets = to_bytes((torch.zeros(3), np.zeros(3)))
    x, y = cast("Any", from_bytes(octets))
    x += 1
    y += 1
    assert same(from_bytes(octets), (torch.zeros(3), np.zeros(3)))
    whole = torch.zeros(2, 3)
    assert len(to_bytes((whole[0], whole[0]))) < 400  # of views the values, not what is around them


Pair = namedtuple("Pair", "a b")


@pytest.mark.parametrize(
    ("value", "said"),
    [
        (object(), "the value is a object"),
        ([1, {"x": {2.5: 1}}], r"the value\[1\]\['x'\] is a dict"),
        (Pair(1, 2), "is a Pair"),
        (torch.nn.Parameter(torch.ones(1)), "is a Parameter"),
        (torch.ones(1, requires_grad=True), "requires_grad=True"),
        (torch.eye(2).to_sparse(), "sparse"),
        (torch.ones(1, device="meta"), "on meta"),
        (torch.ones(1, dtype=torch.complex64), "complex64"),
        (np.array(["a"]), "is a ndarray"),
        (np.array([object()]), "is a ndarray"),
        (np.ones(1, ">f4"), "is a ndarray"),
        ({1, 2}, "is a set"),
    ],
)
def test_what_cannot_be_kept_is_refused_by_its_place(value: Any, said: str) -> None:
    with pytest.raises(fb.ArgumentError, match=said):
        to_bytes(value)


@pytest.mark.parametrize("octets", [b"", b"abc", b"\xff" * 40, to_bytes((1, torch.ones(4)))[:-3]])
def test_other_bytes_are_an_error(octets: bytes) -> None:
    with pytest.raises(fb.DataError, match="no nested value"):
        from_bytes(octets)
