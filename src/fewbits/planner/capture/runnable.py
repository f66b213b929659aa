"""Which operations no processes can do as one process does them, however layers are split."""

from __future__ import annotations

from torch.export import ExportedProgram

from fewbits.planner.capture.arguments import in_place, operation

_DRAWN = {"rand_like", "randn_like", "bernoulli", "rrelu", "rand", "randn"}
_WRITTEN = {"copy", "fill", "index_put", "masked_scatter", "scatter"}


def why_not_run(program: ExportedProgram) -> str:
    """Return why a program cannot run in pieces; empty where it can."""
    for node in program.graph.nodes:
        if node.op != "call_function":
            continue
        name = operation(node)
        if name in _DRAWN:
            return (
                f"{node.name} draws values at random, which processes would do alike on different pieces;"
                " give them as an input, or use dropout"
            )
        if in_place(node) and name in _WRITTEN:
            return (
                f"{node.name} writes into a part of a tensor, which a plan cannot run; write it with"
                " torch.where or torch.cat"
            )
    return ""
