"""Products of packed matrices."""
