"""Conjugate gradients on a 7-point stencil."""
