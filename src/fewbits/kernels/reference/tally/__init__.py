"""What rounding did to the values of an array: sums and counts."""
