"""Which splits run, and which are refused."""

from __future__ import annotations

from collections.abc import Sequence

from fewbits.planner.graph import Layer


def executable(layer: Layer, split: Sequence[int]) -> bool:
    """Tell whether a split of a layer runs; ``split`` has a number for each dimension of its space."""
    return not refusal(layer, split)


def refusal(layer: Layer, split: Sequence[int]) -> str:
    """Return why a split of a layer does not run; empty where it does."""
    parts = {d.name: p for d, p in zip(layer.space, split, strict=True) if p > 1}
    if not parts:
        return ""
    whole = [d.name for d in layer.space if not d.splittable and d.name in parts]
    if whole:
        return f"its values depend on each other along {whole[0]}"
    uneven = [d.name for d in layer.space if d.extent % parts.get(d.name, 1)]
    if uneven:
        return f"its extent along {uneven[0]} is no multiple of {parts[uneven[0]]}"
    if layer.kind == "unknown":
        return "the operation is not known"
    if layer.statistics and "c" in parts:
        return "running moments of channels are kept whole"
    slid = {str(a) for o in layer.inputs if o.halos for a in o.axes if a in {"t", "h", "w"} and a in parts}
    if slid:
        return f"windows reach into the neighbour's piece along {min(slid)}"
    if layer.kind == "softmax" and not layer.output.shape and len(layer.inputs) > 2:
        return "the loss has weights of classes"
    return ""
