"""Lattice quantum chromodynamics: the Wilson operator with narrow links and spinors, and its systems."""

from __future__ import annotations

from fewbits.solvers.lattice.links import project, random_links, smooth_links, unit_links
from fewbits.solvers.lattice.normal import Normal
from fewbits.solvers.lattice.wilson import Wilson

__all__ = ["Normal", "Wilson", "project", "random_links", "smooth_links", "unit_links"]
