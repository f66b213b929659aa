"""Samples that are decoded once, and kept in memory and on the local disk."""

from __future__ import annotations

from fewbits.train.samples.cached_dataset import CachedDataset, CacheStatistics

__all__ = ["CacheStatistics", "CachedDataset"]
