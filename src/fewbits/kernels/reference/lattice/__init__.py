"""Operators on a four-dimensional lattice: their definitions."""
