"""Codes and scales to numbers."""
