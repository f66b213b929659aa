"""Products of a packed matrix with few vectors: the definition of what is not a sum of float32."""
