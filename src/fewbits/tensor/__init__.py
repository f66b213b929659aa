"""Arrays in narrow formats: the NarrowTensor, and functions to quantize, dequantize and round."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from fewbits.tensor.functions import dequantize, fake_quantize, quantize
from fewbits.tensor.inputs import format

if TYPE_CHECKING:
    from fewbits.tensor.narrow import NarrowTensor, from_torch, matmul, matvec, to_torch

# Imported on first use, because these need torch and rounding NumPy arrays does not.
_OF_TORCH = ("NarrowTensor", "from_torch", "matmul", "matvec", "to_torch")

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
    if name in _OF_TORCH:
        globals()[name] = found = getattr(import_module("fewbits.tensor.narrow"), name)
        return found
    raise AttributeError(f"fewbits.tensor has no name {name!r}; it has {', '.join(__all__)}")
