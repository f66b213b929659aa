"""Bytes of collectives: counted while they run, and worked out from a graph and where its pieces lie."""

import math
from collections import Counter
from collections.abc import Sequence
from typing import Any

import torch
from torch import distributed
from torch.utils._python_dispatch import TorchDispatchMode

from fewbits.planner.execution.layout import Layout, places, produced, summed
from fewbits.planner.graph import Graph

# What one process sends in a ring of q, of the values that go in.
_SENT = {
    "all_reduce": lambda n, q: 2 * (q - 1) * n / q,
    "reduce_scatter": lambda n, q: (q - 1) * n / q,
    "all_gather": lambda n, q: (q - 1) * n,
    "all_to_all": lambda n, q: (q - 1) * n / q,
}

_OF_FSDP = {"c10d::_allgather_base_": "all_gather", "c10d::_reduce_scatter_base_": "reduce_scatter"}


class Counted(TorchDispatchMode):
    """Adds up what one process sends, by collective, and how many ran."""

    def __init__(self) -> None:
        super().__init__()
        self.bytes: Counter[str] = Counter()
        self.collectives = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if any(issubclass(t, torch.distributed.tensor.DTensor) for t in types):
            return NotImplemented  # DTensor comes back here with its pieces
        name = func.name()
        kind = next((k for k in _SENT if name.startswith(f"_c10d_functional::{k}")), _OF_FSDP.get(name))
        assert kind or "c10d" not in name or "wait" in name or "wrap" in name, name
        if kind:
            given, group = args[1:3] if name in _OF_FSDP else (args[0], args[-1])
            if name in _OF_FSDP:
                group = distributed.ProcessGroup.unbox(group)
            else:
                group = distributed.distributed_c10d._resolve_process_group(group)
            sent = _SENT[kind](given.numel() * given.element_size(), distributed.get_world_size(group))
            self.bytes[kind] += round(sent)
            self.collectives += 1
        return func(*args, **(kwargs or {}))


def predicted(graph: Graph, layout: Layout) -> Counter[str]:
    """What one process sends in a step in float32, from the iteration spaces alone."""
    total: Counter[str] = Counter()
    sizes = layout.mesh

    def add(kind: str, values: float, axes: Sequence[bool]) -> None:
        q = math.prod(n for n, yes in zip(sizes, axes, strict=True) if yes)
        if q > 1:
            total[kind] += round(_SENT[kind](4 * values, q))

    def piece(shape: tuple[int, ...], at: Sequence[int | None]) -> float:
        return math.prod(shape) / math.prod(n for n, p in zip(sizes, at, strict=True) if p is not None)

    for layer in graph.layers:
        assigned = layout.assignments[layer.name]
        sums = [d is not None and d not in layer.output.axes for d in assigned]
        add("all_reduce", piece(layer.output.shape, places(assigned, layer.output.axes)), sums)
        if layer.name.startswith("cross_entropy"):  # how many targets count
            add("all_reduce", 1, sums)
        for operand in layer.statistics:
            over = [d is not None and d not in operand.axes for d in assigned]
            for _ in ("forward", "backward"):
                add("all_reduce", piece(operand.shape, places(assigned, operand.axes)), over)
        for weight in layer.weights:
            held = places(assigned, weight.axes)
            if weight.trained:
                add("all_reduce", piece(weight.shape, held), summed(layer, weight.axes, assigned))
    for edge in graph.edges:
        layer = graph.layers[edge.consumer]
        operand, assigned = layer.inputs[edge.operand], layout.assignments[layer.name]
        needed, held = places(assigned, operand.axes), produced(graph, edge, layout.assignments)
        shared = summed(layer, operand.axes, assigned)
        whole = piece(operand.shape, needed)
        both = piece(operand.shape, [n if h is None else h for h, n in zip(held, needed, strict=True)])
        add("all_gather", both, [h is not None and n is None for h, n in zip(held, needed, strict=True)])
        add("all_gather", both, [h is None and n is not None for h, n in zip(held, needed, strict=True)])
        add("all_reduce", whole, [s and h is None for s, h in zip(shared, held, strict=True)])
        add("reduce_scatter", whole, [s and h is not None for s, h in zip(shared, held, strict=True)])
    return total
