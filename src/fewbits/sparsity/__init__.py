"""Structured sparsity: patterns, masks, compressed storage, retraining, and a fixed budget of weights."""

from __future__ import annotations

from fewbits.sparsity.masks import density, is_sparse, kept_magnitude, mask, transposable_mask

__all__ = ["density", "is_sparse", "kept_magnitude", "mask", "transposable_mask"]
