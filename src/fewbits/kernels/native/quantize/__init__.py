"""Numbers to packed bits."""
