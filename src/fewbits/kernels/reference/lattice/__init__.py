"""The Wilson operator on a four-dimensional lattice."""
