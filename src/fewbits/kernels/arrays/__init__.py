"""Operations on NumPy arrays; each takes the fastest backend that equals the definition."""
