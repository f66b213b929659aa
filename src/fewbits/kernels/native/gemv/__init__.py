"""A packed matrix with few vectors."""
