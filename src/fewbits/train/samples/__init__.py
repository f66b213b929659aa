"""Samples that are decoded once and kept in memory and on the local disk, and which of them an epoch has."""

from __future__ import annotations

from fewbits.train.samples.cached_dataset import CachedDataset, CacheStatistics
from fewbits.train.samples.filtered_sampler import FilteredSampler, el2n_scores, loss_scores

__all__ = ["CacheStatistics", "CachedDataset", "FilteredSampler", "el2n_scores", "loss_scores"]
