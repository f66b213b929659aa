"""Rounding with error feedback."""
