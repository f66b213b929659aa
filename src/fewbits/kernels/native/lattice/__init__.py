"""Passes over a four-dimensional lattice."""
