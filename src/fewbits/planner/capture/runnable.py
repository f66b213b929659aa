"""Which operations no processes can do as one process does them, however layers are split."""

from __future__ import annotations

import torch
from torch.export import ExportedProgram
from torch.fx import Node

from fewbits.planner.capture.arguments import in_place, operation
from fewbits.planner.capture.views import base_of

# What drops values is run with other draws for each piece: execution/pieces.py.
_DROPS = {"dropout", "feature_dropout", "alpha_dropout", "scaled_dot_product_attention"}
_RECURRENT = {"lstm", "gru", "rnn_tanh", "rnn_relu"}
_WRITTEN = {"copy", "fill", "index_put", "masked_scatter", "scatter"}


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
    return ""


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
