"""Layers that multiply in narrow formats, and :func:`prepare`, which turns a model's layers into them."""

from __future__ import annotations

from fewbits.nn.layer_precision import LayerPrecision
from fewbits.nn.layers.dot_product import DotProductAttention
from fewbits.nn.narrow_products import narrow_products
from fewbits.nn.prepare import prepare
from fewbits.nn.products import attention_product, linear
from fewbits.nn.rounding_observer import RoundingObserver
from fewbits.nn.summary import LayerSummary, Summary, summary

__all__ = [
    "DotProductAttention",
    "LayerPrecision",
    "LayerSummary",
    "RoundingObserver",
    "Summary",
    "attention_product",
    "linear",
    "narrow_products",
    "prepare",
    "summary",
]
