"""Strategy search: how to split a model over machines, with formats and memory in the search."""

from __future__ import annotations

from fewbits.planner.graph import Collective, Dimension, Edge, Graph, Layer, Operand
from fewbits.planner.machines import MACHINES
from fewbits.planner.networks import NETWORKS
from fewbits.planner.planned import Plan
from fewbits.planner.planning import plan
from fewbits.planner.solver import Minimum, minimize
from fewbits.records import Machine, MachineLink

__all__ = [
    "MACHINES",
    "NETWORKS",
    "Collective",
    "Dimension",
    "Edge",
    "Graph",
    "Layer",
    "Machine",
    "MachineLink",
    "Minimum",
    "Operand",
    "Plan",
    "minimize",
    "plan",
]
