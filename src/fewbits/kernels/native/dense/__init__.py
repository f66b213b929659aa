"""Residuals and triangular systems of dense matrices."""
