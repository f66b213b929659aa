"""Structured sparsity: patterns, masks, compressed storage, retraining, and a fixed budget of weights."""

from __future__ import annotations

from fewbits.sparsity.masks import density, is_sparse, kept_magnitude, mask, transposable_mask
from fewbits.sparsity.permutation import ColumnOrder, find_order

__all__ = ["ColumnOrder", "density", "find_order", "is_sparse", "kept_magnitude", "mask", "transposable_mask"]
