"""Operations on pieces: what has to change where a process has a part of an operation's space only."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.fx import Node

from fewbits.planner.capture.arguments import argument, operation
from fewbits.planner.capture.others import LOSSES
from fewbits.planner.execution.boundary import enter, leave
from fewbits.planner.execution.layout import Assignment


@dataclass(frozen=True)
class Piece:
    """The part of a layer that this process has."""

    mesh: Any
    assignment: Assignment
    contracted: tuple[bool, ...]  # which axes of the mesh share out a dimension that is summed
    seed: int = 0  # of what this operation draws at random in this step, the same on every process

    def parts(self, name: str) -> int:
        """Return into how many parts a dimension is split."""
        return math.prod(self.mesh.size(m) for m, d in enumerate(self.assignment) if d == name)

    def place(self, name: str) -> int:
        """Return which of the parts of a dimension this one is."""
        at = 0
        for m, d in enumerate(self.assignment):
            if d == name:
                at = at * self.mesh.size(m) + self.mesh.get_local_rank(m)
        return at

    @property
    def number(self) -> int:
        """Return a number that processes with the same piece share, and no others."""
        at = 0
        for m, d in enumerate(self.assignment):
            at = at * self.mesh.size(m) + (self.mesh.get_local_rank(m) if d is not None else 0)
        return at

    @property
    def summands(self) -> int:
        """How many processes make summands of a value."""
        return math.prod(self.mesh.size(m) for m, yes in enumerate(self.contracted) if yes)

    def sum_along(self, x: torch.Tensor, name: str) -> torch.Tensor:
        """Return the sum of what the parts of a dimension have, which has a gradient."""
        nowhere, over = (None,) * len(self.assignment), tuple(d == name for d in self.assignment)
        return enter(leave(x, self.mesh, nowhere, over), nowhere, over)

    def total(self, x: torch.Tensor) -> torch.Tensor:
        """Return the sum of a tensor without gradient over these processes."""
        nowhere = (None,) * len(self.assignment)
        return leave(x, self.mesh, nowhere, self.contracted).to_local()


def run_piece(node: Node, args: Sequence[Any], kwargs: dict[str, Any], piece: Piece) -> Any:
    """Run an operation on pieces of its tensors; what is summed over processes is left as summands."""
    special = _SPECIAL.get(operation(node))
    if special is not None:
        return special(node, list(args), dict(kwargs), piece)
    if draws(node):
        with torch.random.fork_rng([x.device for x in args if isinstance(x, torch.Tensor) and x.is_cuda]):
            torch.manual_seed(piece.seed + piece.number)
            return out_of_place(node)(*args, **kwargs)
    return out_of_place(node)(*args, **kwargs)


def draws(node: Node) -> bool:
    """Tell whether an operation drops values out."""
    name = operation(node)
    if name in {"dropout", "feature_dropout", "alpha_dropout"}:
        return bool(argument(node, 2, "train")) and bool(argument(node, 1, "p"))
    return name == "scaled_dot_product_attention" and bool(argument(node, 4, "dropout_p", 0.0))


def out_of_place(node: Node) -> Callable[..., Any]:
    """Return the operation that a node runs, as one that writes into none of its arguments."""
    target: Any = node.target
    name, overload = operation(node), target._overloadname
    if target.overloadpacket.__name__ == name:
        function: Callable[..., Any] = target
        return function
    return getattr(getattr(torch.ops.aten, name), overload)  # type: ignore[no-any-return]  # an operator


def _embedding(node: Node, args: list[Any], kwargs: dict[str, Any], piece: Piece) -> Any:
    """Take rows that this process has, and zeros for the others."""
    if piece.parts("v") == 1:
        return torch.ops.aten.embedding.default(*args, **kwargs)
    weight, indices = args[:2]
    first = piece.place("v") * weight.shape[0]
    mine = (indices >= first) & (indices < first + weight.shape[0])
    padding = int(str(argument(node, 2, "padding_idx", -1))) - first
    padding = padding if 0 <= padding < weight.shape[0] else -1
    rows = torch.ops.aten.embedding.default(weight, torch.where(mine, indices - first, 0), padding)
    return rows * mine.unsqueeze(-1)


def _mean(node: Node, args: list[Any], kwargs: dict[str, Any], piece: Piece) -> Any:
    target: Any = node.target
    return target(*args, **kwargs) / piece.summands


def _loss(node: Node, args: list[Any], kwargs: dict[str, Any], piece: Piece) -> Any:
    """Take the mean of pieces that are all as large."""
    target: Any = node.target
    mean = argument(node, LOSSES[operation(node)], "reduction", 1) == 1
    return target(*args, **kwargs) / (piece.summands if mean else 1)


def _cross_entropy(node: Node, args: list[Any], kwargs: dict[str, Any], piece: Piece) -> Any:
    """Divide the sum of losses by how many targets count on all processes."""
    target: Any = node.target
    reduction = int(str(argument(node, 3, "reduction", 1)))
    if reduction != 1 or piece.summands == 1:
        return target(*args, **kwargs)
    arguments = {"weight": None, "reduction": 1, "ignore_index": -100, **kwargs}
    arguments.update(zip(("weight", "reduction", "ignore_index", "label_smoothing"), args[2:], strict=False))
    wanted, ignored = args[1], arguments["ignore_index"]
    counted = (
        wanted != ignored if not wanted.is_floating_point() else wanted.select(1, 0) == wanted.select(1, 0)
    )
    total = piece.total(counted.sum().to(args[0].dtype))
    return target(args[0], wanted, **{**arguments, "reduction": 2}) / total


def _batch_norm(node: Node, args: list[Any], kwargs: dict[str, Any], piece: Piece) -> Any:
    """Normalize by the moments of the whole batch."""
    parts = piece.parts("b")
    if not argument(node, 5, "training") or parts == 1:
        return torch.ops.aten.batch_norm.default(*args, **kwargs)
    x, weight, bias, running_mean, running_var, _, momentum, eps, *_ = args
    over = [i for i in range(x.dim()) if i != 1]
    shape = [1, -1, *[1] * (x.dim() - 2)]
    count = x.numel() // x.shape[1] * parts
    mean = piece.sum_along(x.sum(over), "b") / count
    centred = x - mean.view(shape)
    var = piece.sum_along(centred.square().sum(over), "b") / count
    if running_mean is not None:
        with torch.no_grad():
            running_mean.lerp_(mean, momentum)
            running_var.lerp_(var * (count / (count - 1)), momentum)
    y = centred * (var + eps).rsqrt().view(shape)
    return y if weight is None else y * weight.view(shape) + bias.view(shape)


def _convolution(node: Node, args: list[Any], kwargs: dict[str, Any], piece: Piece) -> Any:
    target: Any = node.target
    parts = piece.parts("g")
    if parts > 1:
        at = 8 if operation(node) == "convolution" else 6  # of the groups
        if "groups" not in kwargs and len(args) > at:
            args[at] //= parts
        else:
            kwargs["groups"] //= parts
    return target(*args, **kwargs)


def _addmm(node: Node, args: list[Any], kwargs: dict[str, Any], piece: Piece) -> Any:
    """Multiply; what is added comes behind the sum where the product is shared out, and is None here."""
    bias, x, weight = args
    if bias is None:
        return kwargs.get("alpha", 1) * (x @ weight)
    return torch.addmm(bias, x, weight, **kwargs)


CONVOLUTIONS = frozenset(("convolution", *(f"conv{t}{n}d" for t in ("", "_transpose") for n in (1, 2, 3))))

_SPECIAL: dict[str, Callable[[Node, list[Any], dict[str, Any], Piece], Any]] = {
    "embedding": _embedding,
    "mean": _mean,
    "batch_norm": _batch_norm,
    **dict.fromkeys(("cross_entropy_loss", "nll_loss", "nll_loss_nd"), _cross_entropy),
    "addmm": _addmm,
    **dict.fromkeys(LOSSES, _loss),
    **dict.fromkeys(CONVOLUTIONS, _convolution),
}
