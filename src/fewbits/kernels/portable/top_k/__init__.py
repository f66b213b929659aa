"""The largest magnitudes of a tensor."""
