"""Single values: their bits, rounding, codes, scales, draws."""
