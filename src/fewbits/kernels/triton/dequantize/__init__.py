"""Packed bits to numbers."""
