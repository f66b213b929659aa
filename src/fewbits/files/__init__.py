"""Files: safetensors checkpoints with narrow tensors, MatrixMarket matrices, and atomic writes."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from fewbits.files.casting import cast, restore
    from fewbits.files.inspection import inspect
    from fewbits.files.tensors import load_file, save_file

# Imported on first use: writing a text file needs none of the kernels.
_HOMES = {
    "cast": "casting",
    "inspect": "inspection",
    "load_file": "tensors",
    "restore": "casting",
    "save_file": "tensors",
}

__all__ = ["cast", "inspect", "load_file", "restore", "save_file"]


def __getattr__(name: str) -> object:
    if name in _HOMES:
        return getattr(import_module(f"fewbits.files.{_HOMES[name]}"), name)
    raise AttributeError(f"fewbits.files has no name {name!r}; it has {', '.join(__all__)}")
