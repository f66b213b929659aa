"""Structured sparsity: patterns, masks, compressed storage, retraining, and a fixed budget of weights."""

from fewbits.sparsity.index_metadata import compress, decompress

__all__ = ["compress", "decompress"]
