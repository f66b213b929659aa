"""The largest magnitudes of an array."""
