"""Single values: rounding, codes, scales, draws."""
