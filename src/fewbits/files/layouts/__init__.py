"""Checkpoints in the layouts of other programs, as if their own tools had made them; docs/layouts.md."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from fewbits.errors import ArgumentError
from fewbits.files.layouts import compressed_tensors, gguf, gpt_oss, modelopt, onnx, torchao
from fewbits.files.layouts.layout import Layout

_ALL = (
    compressed_tensors.LAYOUT,
    gguf.LAYOUT,
    gpt_oss.LAYOUT,
    modelopt.LAYOUT,
    onnx.LAYOUT,
    onnx.RUNTIME_LAYOUT,
    torchao.LAYOUT,
)
LAYOUTS: Mapping[str, Layout] = MappingProxyType({layout.name: layout for layout in _ALL})


def named(name: str) -> Layout:
    """Return a layout by its name.

    Raises:
        ArgumentError: there is none of that name.
    """
    if name not in LAYOUTS:
        raise ArgumentError(f"layout={name!r:.60} is unknown; expected one of {', '.join(LAYOUTS)}")
    return LAYOUTS[name]
