"""Numbers to packed bits, or to the values those stand for."""
