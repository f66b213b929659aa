"""The bias of an exponent field that was not given."""

IEEE_BIAS = -(2**15)
"""Stands for 2^(bits - 1) - 1, as in IEEE 754, section 3.4; no bias is so low."""
