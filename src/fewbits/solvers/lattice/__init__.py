"""Lattice quantum chromodynamics: Wilson, clover and staggered fermions in narrow formats, their systems."""

from __future__ import annotations

from fewbits.solvers.lattice.clover import Clover
from fewbits.solvers.lattice.links import project, random_links, smooth_links, unit_links
from fewbits.solvers.lattice.normal import Normal
from fewbits.solvers.lattice.ritz import RitzVectors
from fewbits.solvers.lattice.staggered import Staggered
from fewbits.solvers.lattice.wilson import Wilson

__all__ = [
    "Clover",
    "Normal",
    "RitzVectors",
    "Staggered",
    "Wilson",
    "project",
    "random_links",
    "smooth_links",
    "unit_links",
]
