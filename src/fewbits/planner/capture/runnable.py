"""Which operations no processes can do as one process does them, however layers are split."""

from __future__ import annotations

from collections.abc import Mapping
from operator import getitem

import torch
from torch.export import ExportedProgram
from torch.fx import Node

from fewbits.planner.capture.arguments import argument, in_place, operation
from fewbits.planner.capture.views import COPIES, base_of, is_view

# What drops values is run with other draws for each piece: execution/pieces.py.
_DROPS = {"dropout", "feature_dropout", "alpha_dropout", "scaled_dot_product_attention"}
_RECURRENT = {"lstm", "gru", "rnn_tanh", "rnn_relu"}
_WRITTEN = {"copy", "fill", "index_put", "masked_scatter", "scatter"}
# Parts of a model that are one operation of a program: what they are, and what stands in their place.
_REGIONS = {
    "wrap_with_set_grad_enabled": (
        "layers inside of torch.no_grad() or torch.enable_grad()",
        "drop gradients by x.detach()",
    ),
    "wrap_with_autocast": (
        "layers inside of torch.autocast()",
        "enter it around the model, or convert by x.to",
    ),
}


def why_not_run(program: ExportedProgram) -> str:
    """Return why a program cannot run in pieces; empty where it can."""
    for node in program.graph.nodes:
        if node.op != "call_function":
            continue
        if _draws(node):
            return (
                f"{node.name} draws values at random, which processes would do alike on different pieces;"
                " give them as an input, or use dropout"
            )
        if in_place(node) and _writes_part(node):
            return (
                f"{node.name} writes into a part of a tensor, which a plan cannot run; write it with"
                " torch.where or torch.cat"
            )
        if operation(node) == "embedding" and argument(node, 4, "sparse"):
            return f"{node.name} has a sparse gradient, which a plan cannot run; leave sparse=True out of it"
    return ""


def why_not_here(node: Node) -> str:
    """Return why an operation cannot run that reads what layers make, or parameters; empty where it can."""
    if isinstance(node.target, torch._ops.OpOverload):
        return ""
    what, instead = _REGIONS.get(operation(node), ("operations that are called as one", "leave it out"))
    return f"{node.name} has {what}, which a plan cannot run; {instead}"


def why_lost(node: Node, held: Mapping[str, str]) -> str:
    """Return who would not see what an operation writes of a layer into a tensor; empty: everyone does.

    Processes have pieces of the tensor, and what they write is in no other's memory.

    Args:
        node: the operation in place.
        held: names of the model's parameters and buffers, by those of their placeholders.
    """
    written, everything = node.all_input_nodes[0], list(node.graph.nodes)
    base = _memory(written)
    if base.name in held:
        return (
            f"{node.name} writes what a layer makes into {held[base.name]}, which the model holds and a plan"
            " cannot write; return it, and write it after the step"
        )
    at = everything.index(node)
    after = set(everything[at + 1 :])
    for other in everything[:at]:
        if other is not written and _memory(other) is base and not after.isdisjoint(other.users):
            return (
                f"{node.name} writes into a tensor that {other.name} shows, which is read after it; no plan"
                " can run that: make a new tensor in place of writing into it"
            )
    return ""


def _memory(node: Node) -> Node:
    """Return the node that made the memory which a node shows."""
    while node.op == "call_function":
        whole = node.all_input_nodes[0] if node.target is getitem else node
        name = operation(whole)
        if name in COPIES or not (in_place(whole) or is_view(whole, name)):
            break
        node = whole.all_input_nodes[0]
    return node


def _writes_part(node: Node) -> bool:
    """Return whether an operation in place writes what other tensors share: pieces have copies of it."""
    name, written = operation(node), node.all_input_nodes[0]
    return name in _WRITTEN or (name != "detach" and base_of(written) is not written)


def _draws(node: Node) -> bool:
    """Return whether an operation draws values, but for those that each piece has its own of."""
    target, name = node.target, operation(node)
    if not isinstance(target, torch._ops.OpOverload) or name in _DROPS:
        return False
    if name in _RECURRENT:  # draws only between its layers
        given = dict(zip((x.name for x in target._schema.arguments), node.args, strict=False)) | node.kwargs
        return bool(given["dropout"] and given["train"])
    return torch.Tag.nondeterministic_seeded in target.tags
