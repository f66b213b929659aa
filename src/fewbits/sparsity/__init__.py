"""Structured sparsity: patterns, masks, compressed storage, retraining, and a fixed budget of weights."""

from __future__ import annotations

from fewbits.sparsity.dropback import DropBack
from fewbits.sparsity.masks import density, is_sparse, kept_magnitude, mask, transposable_mask
from fewbits.sparsity.permutation import ColumnOrder, find_order
from fewbits.sparsity.permuted import PermutedChannels, PermuteReport, permute

__all__ = [
    "ColumnOrder",
    "DropBack",
    "PermuteReport",
    "PermutedChannels",
    "density",
    "find_order",
    "is_sparse",
    "kept_magnitude",
    "mask",
    "permute",
    "transposable_mask",
]
