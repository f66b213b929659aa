"""What autograd keeps for the backward pass: of operations value by value, and of layers made of them."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from operator import getitem

from torch.fx import Node

from fewbits.planner.capture.arguments import in_place, operation, tensors
from fewbits.planner.capture.products import shape_of
from fewbits.planner.capture.views import is_view


@dataclass(frozen=True)
class Kept:
    """What one operation keeps."""

    read: tuple[Node, ...] = ()  # of what it reads
    made: bool = False  # whether it keeps its result
    own: int = 0  # values of no node of the graph: a mask of a dropout, the copy of what is written over


@dataclass
class KeptOfLayer:
    """Tensors that a layer made and that are kept, by itself and by layers that read them."""

    inside: set[Node] = field(default_factory=set)
    outside: set[Node] = field(default_factory=set)

    def beside(self, output: int) -> tuple[int, bool]:
        """Return how many values are kept beside the output, and whether the layer itself needs that.

        The output stands for one of the tensors that others keep: with which bits is up to them.

        Args:
            output: how many values it has.
        """
        (represented,) = sorted(self.outside & self.inside or self.outside, key=_size)[-1:] or (None,)
        left = (self.inside | self.outside) - {represented}
        more = max(0, _size(represented) - output) if represented else 0  # joined, it has more values
        return more + sum(_size(node) for node in left), represented in self.inside


def pointwise(node: Node, has_gradient: Callable[[Node], bool]) -> Kept:
    """Return what an operation value by value keeps."""
    name, read = operation(node), tensors(node)
    graded = [has_gradient(x) for x in read]
    if not any(graded):
        return Kept()
    if name in _CONDITIONS:
        return Kept(own=-(-math.prod(shape_of(read[_CONDITIONS[name]])) // 4))  # a byte for each value
    if name == "mul":
        return Kept(tuple(x for i, x in enumerate(read) if any(graded[:i] + graded[i + 1 :])))
    if name == "div":
        return Kept((*read[:1], *read[1:]) if graded[-1] and len(read) > 1 else tuple(read[1:]))
    if name == "pow":
        return Kept(tuple(read), made=len(read) > 1 or not isinstance(node.args[0], Node))
    if name == "lerp":
        return Kept(tuple(read if graded[-1] else read[2:]) if len(read) > 2 else ())
    if name in _DROPOUTS:
        return Kept(own=math.prod(shape_of(node)))
    if in_place(node) and name in _RESULT_IN_PLACE:
        return Kept(made=True)
    if in_place(node) and name in _INPUT:
        return Kept(own=math.prod(shape_of(read[0])))
    if name in _OPERANDS:
        return Kept(tuple(read[_OPERANDS[name] :]) if len(read) > 1 else ())
    return Kept(tuple(read[:1]) if name in _INPUT else (), made=name in _RESULT)


def storage(node: Node) -> Node:
    """Return the node whose memory a node shows: what it is a view of, or what it was written into."""
    while node.op == "call_function":
        whole = node.all_input_nodes[0] if node.target is getitem else node
        if not in_place(whole) and not is_view(whole, operation(whole)):
            break
        node = whole.all_input_nodes[0]
    return node


def _size(node: Node) -> int:
    return math.prod(shape_of(node))


# Derivatives as autograd has them (tools/autograd/derivatives.yaml of PyTorch), by what they need.
_INPUT: Collection[str] = frozenset(
    (
        *("abs", "acos", "asin", "atan", "celu", "clamp", "clamp_max", "clamp_min", "copysign", "cos"),
        *("cosh", "elu", "erf", "erfc", "gelu", "hardsigmoid", "hardswish", "hardtanh", "leaky_relu"),
        *("log", "log10", "log1p", "log2", "log_sigmoid", "mish", "relu6", "rrelu", "selu", "silu"),
        *("sin", "sinh", "softplus", "softshrink", "square", "tanhshrink", "threshold"),
    )
)
_RESULT: Collection[str] = frozenset(
    (
        *("copysign", "exp", "exp2", "expm1", "reciprocal", "relu", "rsqrt", "sigmoid", "sqrt"),
        *("tan", "tanh"),
    )
)
_RESULT_IN_PLACE: Collection[str] = frozenset(("celu", "elu", "leaky_relu", "rrelu", "selu"))
# Of several tensors all from this one on; of a tensor and numbers none.
_OPERANDS = {
    **dict.fromkeys(("atan2", "fmod", "logaddexp", "max", "maximum", "min", "minimum", "remainder"), 0),
    "xlogy": 0,
    **dict.fromkeys(("addcdiv", "addcmul"), 1),
}
_CONDITIONS = {"where": 0, "masked_fill": 1}  # which of the tensors they choose by
_DROPOUTS = frozenset(("dropout", "feature_dropout"))
