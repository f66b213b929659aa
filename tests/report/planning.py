"""A plan that looks like a real one."""

import math
from dataclasses import replace

from fewbits.records import Machine, MachineLink, PlannedEdge, PlannedLayer, PlannedStrategy, PlanRecord


def record() -> PlanRecord:
    """Four layers, of which two stand side by side, with a bound below the time."""
    dimensions, splits = ("b", "n", "k"), [(8, 1, 1), (1, 4, 2), (2, 1, 1), (1, 1, 1)]
    layers = tuple(
        PlannedLayer(
            f"block.{i}.very_long_name_of_a_projection", "product" if i else "convolution", dimensions, s,
            "mxfp8" if i else "", 1e-3 * (i + 1), 2e-4, 1e6, 3e8, (1, 2, 1), math.inf if i == 3 else 1e-5,
            sharded=s[0] == 8,
        )
        for i, s in enumerate(splits)
    )  # fmt: skip
    pairs = (0, 1, 0), (0, 2, 0), (1, 3, 0), (2, 3, 1)
    edges = tuple(PlannedEdge(a, b, k, 1e-4, 1e5, 1e3) for a, b, k in pairs)
    machine = Machine("h100", {"fp32": 1e13}, (MachineLink(3600), MachineLink(400)), 8e10, 8, 1e12)
    strategies = (PlannedStrategy("data parallel", 0.02, 1e9, 1e10),)
    made = PlanRecord("net", "0" * 16, 8, machine, "fp32", "", layers, edges, 0.0, 0.0, 8e10, 4.0, strategies)
    seconds = made.compute_seconds + made.link_seconds
    return replace(made, seconds=seconds, bound=0.99 * seconds, warnings=("aten.foo is not split",))
