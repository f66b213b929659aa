"""Layers that multiply in narrow formats, and :func:`prepare`, which turns a model's layers into them."""

from __future__ import annotations

from fewbits.nn.layer_precision import LayerPrecision
from fewbits.nn.layers.dot_product import DotProductAttention
from fewbits.nn.prepare import prepare
from fewbits.nn.products import attention_product, linear
from fewbits.nn.summary import LayerSummary, Summary, summary
from fewbits.nn.watch import Watch

__all__ = [
    "DotProductAttention",
    "LayerPrecision",
    "LayerSummary",
    "Summary",
    "Watch",
    "attention_product",
    "linear",
    "prepare",
    "summary",
]
