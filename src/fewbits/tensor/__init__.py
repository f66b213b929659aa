"""Arrays in narrow formats: the NarrowTensor and the everyday functions."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from fewbits.tensor.functions import dequantize, fake_quantize, format, quantize

if TYPE_CHECKING:
    from fewbits.tensor.narrow import NarrowTensor
    from fewbits.tensor.products import matmul, matvec
    from fewbits.tensor.torch_dtypes import from_torch, to_torch

_HOMES = {  # these need torch, which who rounds NumPy arrays does without
    "NarrowTensor": "fewbits.tensor.narrow",
    "matmul": "fewbits.tensor.products",
    "matvec": "fewbits.tensor.products",
    "from_torch": "fewbits.tensor.torch_dtypes",
    "to_torch": "fewbits.tensor.torch_dtypes",
}

__all__ = [
    "NarrowTensor",
    "dequantize",
    "fake_quantize",
    "format",
    "from_torch",
    "matmul",
    "matvec",
    "quantize",
    "to_torch",
]


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        return getattr(import_module(_HOMES[name]), name)
    raise AttributeError(f"fewbits.tensor has no name {name!r}; it has {', '.join(__all__)}")
