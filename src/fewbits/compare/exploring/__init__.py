"""Explore the design space of formats on one kind of data: its Pareto front, or the best within a budget.

``space`` lists the formats, ``vectors`` has the data, ``sweep`` measures all formats and finds the fronts,
``fitting`` makes tables of values for the data, ``budget`` lets held-out data choose.
"""

from fewbits.compare.exploring.budget import best_format
from fewbits.compare.exploring.space import design_space
from fewbits.compare.exploring.sweep import explore_formats
from fewbits.compare.exploring.vectors import DISTRIBUTIONS

__all__ = ["DISTRIBUTIONS", "best_format", "design_space", "explore_formats"]
