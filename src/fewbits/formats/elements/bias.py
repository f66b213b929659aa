"""The bias of an exponent field that was not given."""

IEEE_BIAS = -(2**15)
"""Placeholder for the bias 2^(bits - 1) - 1 of IEEE 754, section 3.4; no real bias is this low."""
