"""Products of dense matrices."""
