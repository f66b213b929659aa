"""Products of a packed matrix with few vectors."""
