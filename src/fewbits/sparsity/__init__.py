"""Structured sparsity: patterns, masks, compressed storage, retraining, and a fixed budget of weights."""

from __future__ import annotations

from fewbits.sparsity.dropback import DropBack
from fewbits.sparsity.index_metadata import compress, decompress
from fewbits.sparsity.masks import density, is_sparse, kept_magnitude, mask, transposable_mask
from fewbits.sparsity.optimizer import MaskedOptimizer
from fewbits.sparsity.permutation import ColumnOrder, find_order
from fewbits.sparsity.permute_model import PermutedChannels, PermuteReport, permute
from fewbits.sparsity.pruning import remove_masks, sparsify
from fewbits.sparsity.schedules import SR_STE, Frozen, Gradual, Recomputed, Schedule

__all__ = [
    "SR_STE",
    "ColumnOrder",
    "DropBack",
    "Frozen",
    "Gradual",
    "MaskedOptimizer",
    "PermuteReport",
    "PermutedChannels",
    "Recomputed",
    "Schedule",
    "compress",
    "decompress",
    "density",
    "find_order",
    "is_sparse",
    "kept_magnitude",
    "mask",
    "permute",
    "remove_masks",
    "sparsify",
    "transposable_mask",
]
