"""Structured sparsity: patterns, masks, compressed storage, retraining, and a fixed budget of weights."""
