"""Arguments and results of an exported operation."""

from __future__ import annotations

import torch
from torch.fx import Node
from torch.fx.node import Argument


def operation(node: Node) -> str:
    """Return the name of the operation without its overload: ``add`` of ``aten.add_.Tensor``."""
    target = node.target
    name = target.overloadpacket.__name__ if isinstance(target, torch._ops.OpOverload) else str(target)
    return name[:-1] if in_place(node) else name


def in_place(node: Node) -> bool:
    """Tell whether an operation writes into its first argument."""
    target = node.target
    if not isinstance(target, torch._ops.OpOverload):
        return False
    name = target.overloadpacket.__name__
    return name.endswith("_") and not name.endswith("__")


def argument(node: Node, index: int, name: str, default: object = None) -> object:
    """Return an argument by place or name, or its default."""
    if index < len(node.args):
        return node.args[index]
    return node.kwargs.get(name, default)


def integers(given: object, rank: int, default: int) -> tuple[int, ...]:
    """Return ``rank`` integers of an argument that may be one, a list of one, or empty."""
    values = [int(str(i)) for i in given] if isinstance(given, (list, tuple)) else [given]
    known = [int(str(i)) for i in values if i is not None] or [default]
    return tuple(known * rank if len(known) == 1 else known)


def tensors(node: Node) -> list[Node]:
    """Return the nodes among the arguments that are tensors, in order, each as often as it stands there."""
    found: list[Node] = []

    def look(given: Argument) -> None:
        if isinstance(given, Node):
            if isinstance(given.meta.get("val"), torch.Tensor):
                found.append(given)
        elif isinstance(given, (list, tuple)):
            for one in given:
                look(one)

    for given in (*node.args, *node.kwargs.values()):
        look(given)
    return found


def extents(node: Node) -> list[tuple[int, ...]]:
    """Return the shapes of the tensors that an operation makes."""
    made = node.meta.get("val")
    results = made if isinstance(made, (list, tuple)) else [made]
    return [tuple(int(n) for n in x.shape) for x in results if isinstance(x, torch.Tensor)]
