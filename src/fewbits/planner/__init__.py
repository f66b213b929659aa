"""Strategy search: how to split a model over machines, with formats and memory in the search."""

from __future__ import annotations

from fewbits.planner.graph import Dimension, Edge, Graph, Layer, Operand
from fewbits.planner.solver import Minimum, minimize

__all__ = ["Dimension", "Edge", "Graph", "Layer", "Minimum", "Operand", "minimize"]
