"""Channels of whole models: outputs stay, more is kept, and what cannot move is left and named."""

from fewbits.sparsity import permute as _  # noqa: F401
