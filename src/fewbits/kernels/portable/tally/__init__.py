"""What rounding did to the values of a tensor: sums and counts."""
