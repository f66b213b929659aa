"""Permute the channels of a model so that N:M keeps more of its weights; its outputs stay what they are."""

from __future__ import annotations

import math
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import nn
from torch.utils._pytree import tree_leaves

from fewbits.errors import ArgumentError
from fewbits.formats import Pattern
from fewbits.formats import pattern as read
from fewbits.names import Selection, within
from fewbits.sparsity import channel_rules
from fewbits.sparsity.channels import Axes, Axis
from fewbits.sparsity.layers import reduction_axes
from fewbits.sparsity.permutation import ColumnOrder, find_order
from fewbits.tensor.evaluation import buffers_kept, evaluated
from fewbits.tensor.memory import overlap, unready


@dataclass(frozen=True)
class PermutedChannels:
    """Channels that were permuted together."""

    layers: tuple[str, ...]  # weights whose input channels they are
    others: tuple[str, ...]  # the rest that was permuted: weights that make them, biases, norms
    search: ColumnOrder  # what was found for their order

    def __str__(self) -> str:
        return (
            f"{len(self.search.order)} channels into {', '.join(self.layers)}: kept magnitude"
            f" {self.search.before:.6g} to {self.search.after:.6g}, of at most {self.search.bound:.6g}"
        )


@dataclass(frozen=True)
class PermuteReport:
    """What :func:`permute` did."""

    pattern: str
    permuted: tuple[PermutedChannels, ...]
    left_alone: tuple[tuple[str, str], ...]  # weights whose input channels stay, and why
    largest_change: float  # of an output on the example inputs, in units of the largest output

    def __str__(self) -> str:
        lines = [str(channels) for channels in self.permuted]
        lines += [f"left alone: {name}: {why}" for name, why in self.left_alone]
        return "\n".join([*lines, f"largest change of an output: {self.largest_change:.2g} of the largest"])


def permute(
    model: nn.Module,
    pattern: str | Pattern = "2:4",
    *,
    example_inputs: torch.Tensor | tuple[object, ...],
    include: str | Iterable[str] = "*",
    exclude: str | Iterable[str] = (),
    seed: int = 0,
    seconds: float = 60.0,
) -> PermuteReport:
    """Permute channels of a model in place, so that pruning by magnitude to the pattern keeps more.

    The model is traced by torch.export, and every tensor that shares a permuted axis moves along: the weights
    that make the channels, biases, norms, depthwise convolutions, all branches of a residual sum. Channels
    stay where that cannot be: at the model's inputs and outputs, where attention divides them into heads,
    where an operation is not known. Call it on a trained model, before it is pruned or has an optimizer.

    Args:
        model: any module that torch.export can trace.
        pattern: ``N:M``, such as ``2:4``.
        example_inputs: a tensor, or a tuple of what ``model`` takes. Outputs on them before and after are
            compared.
        include: patterns of module names, as :func:`sparsify` takes them: whose weights are to keep more.
        exclude: the same of modules that stay dense. Their channels may move along with others.
        seed: of the search.
        seconds: at most this long for all searches. As long as that is enough, equal arguments give equal
            models.

    Raises:
        FormatError: no such pattern.
        ArgumentError: a pattern of names that fits no module, a model that is sparse already, has no values
            yet or cannot be traced, or one whose outputs would change. The model is as it was then, as after
            any other exception.
        DataError: weights hold a NaN or an infinity.
    """
    if any(hasattr(module, "fewbits_sparsity") for module in model.modules()):
        raise ArgumentError(
            "the model is sparse already, and its masks would not move along; permute it before sparsify"
        )
    for name, tensor in (*model.named_parameters(), *model.named_buffers()):
        if why := unready(tensor):
            raise ArgumentError(f"{name} {why}")
    chosen = read(pattern)
    selection = Selection.of(include, exclude, dict(model.named_modules(remove_duplicate=False)))
    inputs = example_inputs if isinstance(example_inputs, tuple) else (example_inputs,)
    with evaluated(model):
        axes, tensors = _traced(model, inputs)
        before = _outputs(model, inputs)
        jobs, left = _jobs(axes, _wanted(model, axes, selection), tensors, chosen)
        permuted = _search(jobs, axes, tensors, chosen, seed, time.perf_counter() + seconds)
        orders = {root: channels.search.order for root, channels in permuted.items()}
        with _undone_on_failure() as moved:
            _move(axes, tensors, orders, moved)
            change = _largest_change(before, _outputs(model, inputs))
            if not change <= _rounding(model, before):
                raise ArgumentError(
                    f"with its channels permuted the outputs of {type(model).__name__} change by {change:.2g}"
                    " of the largest: it does something that its trace does not show. The weights are as they"
                    " were; permute those parts of the model that are plain"
                )
    return PermuteReport(str(chosen), tuple(permuted.values()), tuple(left.items()), change)


def _outputs(model: nn.Module, inputs: tuple[object, ...]) -> list[torch.Tensor]:
    with buffers_kept(model):
        return [x.clone() for x in tree_leaves(model(*inputs)) if isinstance(x, torch.Tensor)]


def _largest_change(before: list[torch.Tensor], after: list[torch.Tensor]) -> float:
    """Return the largest change of an output, in units of its largest finite magnitude.

    It is infinite where an output is not finite, before or after, and is not the same both times.
    """
    changes = [0.0]
    for b, a in zip(before, after, strict=True):
        old, new = b.double(), a.double()
        finite = old.isfinite() & new.isfinite()
        if not torch.allclose(old[~finite], new[~finite], rtol=0, atol=0, equal_nan=True):
            return math.inf
        old, new = old[finite], new[finite]
        if len(old):
            changes.append(float((old - new).abs().max()) / (float(old.abs().max()) or 1.0))
    return max(changes)


def _rounding(model: nn.Module, outputs: list[torch.Tensor]) -> float:
    """Return the change of an output that another order of sums may cause; a wrong channel causes more."""
    dtypes = {x.dtype for x in (*model.parameters(), *outputs) if x.is_floating_point()}
    return math.sqrt(max((torch.finfo(dtype).eps for dtype in dtypes), default=1.0))


def _traced(model: nn.Module, inputs: tuple[object, ...]) -> tuple[Axes, dict[str, torch.Tensor]]:
    """Return the axes of the model's graph, and its parameters and buffers by their first names."""
    try:
        program = torch.export.export(model, inputs)
    except Exception as error:  # torch.export raises anything that the user's code may
        raise ArgumentError(
            f"torch.export cannot trace {type(model).__name__}, so that it is not known which channels belong"
            f" together: {error}"
        ) from error
    signature, axes = program.graph_signature, Axes()
    held = {**signature.inputs_to_parameters, **signature.inputs_to_buffers}
    owned: dict[str, torch.Tensor] = {**dict(model.named_parameters()), **dict(model.named_buffers())}
    first = {id(tensor): name for name, tensor in owned.items()}
    every: dict[str, torch.Tensor] = {}
    every.update(model.named_parameters(remove_duplicate=False))
    every.update(model.named_buffers(remove_duplicate=False))
    for node in program.graph.nodes:
        if node.op == "placeholder":
            if node.name in held:
                tensor = every[held[node.name]]
                axes.names[node] = first[id(tensor)]
                if why := overlap(tensor):
                    axes.fix_all(node, f"{held[node.name]} {why}")
            else:
                axes.fix_all(node, "an input of the model, or a constant in it")
        elif node.op == "call_function":
            channel_rules.apply(axes, node)
        elif node.op == "output":
            for output in node.all_input_nodes:
                axes.fix_all(output, "an output of the model")
    axes.settle()
    return axes, owned


def _wanted(model: nn.Module, axes: Axes, selection: Selection) -> list[Axis]:
    """Return the axes of input channels of the weights that are meant to keep more.

    These are the weights of products in the trace, and all those that :func:`sparsify` prunes. As there, one
    with several names is meant by each of them, and left out if one of them is excluded.
    """
    first: dict[int, str] = {}
    names: dict[str, list[str]] = {}
    for name, p in model.named_parameters(remove_duplicate=False):
        names.setdefault(first.setdefault(id(p), name), []).append(name.rpartition(".")[0])
    pruned = {
        (first[id(module._parameters[key])], axis): None
        for module in model.modules()
        for key, axis in reduction_axes(module).items()
    }
    return [
        axis
        for axis in {**axes.consumed, **pruned}
        for users in [names.get(axis[0], [""])]  # "": what the model computes
        if any(within(user, selection.include) for user in users)
        and not any(within(user, selection.exclude) for user in users)
    ]


def _jobs(
    axes: Axes, wanted: list[Axis], tensors: dict[str, torch.Tensor], pattern: Pattern
) -> tuple[dict[Axis, list[Axis]], dict[str, str]]:
    """Return the weights that consume the channels of each class, and why the channels of others stay."""
    jobs: dict[Axis, list[Axis]] = {}
    left: dict[str, str] = {}
    flat = {axes.root(flattened) for _, flattened, _ in axes.flattened}
    for axis in wanted:
        name, root = axis[0], axes.root(axis)
        if name not in tensors:
            left[name] = "it is computed in the model, not a parameter"
        elif root in axes.fixed:
            left[name] = axes.fixed[root]
        elif root in flat:
            left[name] = "flattened positions of a channel stay neighbours; they move with their channel"
        elif (n := tensors[name].shape[axis[1]]) % pattern.group:
            left[name] = f"its number of channels, {n}, is no multiple of {pattern.group}"
        elif axis not in axes.parent:
            left[name] = "the trace does not reach it"
        else:
            jobs.setdefault(root, []).append(axis)
    return jobs, left


def _search(
    jobs: dict[Axis, list[Axis]],
    axes: Axes,
    tensors: dict[str, torch.Tensor],
    pattern: Pattern,
    seed: int,
    deadline: float,
) -> dict[Axis, PermutedChannels]:
    permuted: dict[Axis, PermutedChannels] = {}
    members = axes.members()
    for channels, flat, _ in axes.flattened:
        members[axes.root(channels)] += members[axes.root(flat)]
    for i, (root, weights) in enumerate(jobs.items()):
        names = [name for name, _ in weights]
        matrices = [tensors[name].detach().movedim(axis, -1).flatten(0, -2) for name, axis in weights]
        left = max((deadline - time.perf_counter()) / (len(jobs) - i), 1e-3)
        order = find_order(matrices, pattern, seed=seed, seconds=left)
        if order.after > order.before:
            others = {name for name, _ in members[root] if name in tensors} - set(names)
            permuted[root] = PermutedChannels(tuple(names), tuple(sorted(others)), order)
    return permuted


@dataclass(frozen=True)
class _Move:
    """An order that one axis of a tensor gets, and the version that the tensor had before."""

    tensor: torch.Tensor
    axis: int
    order: torch.Tensor
    version: int

    def undo(self) -> None:
        if self.tensor._version != self.version:  # else it failed before it wrote
            self.tensor.copy_(self.tensor.index_select(self.axis, self.order.argsort()))


@contextmanager
def _undone_on_failure() -> Iterator[list[_Move]]:
    """Yield a list for the moves that are made; after any exception they are undone."""
    moved: list[_Move] = []
    try:
        yield moved
    except BaseException:
        for move in reversed(moved):  # the last one first: two parameters may lie in the same memory
            move.undo()
        raise


def _move(
    axes: Axes, tensors: dict[str, torch.Tensor], orders: dict[Axis, torch.Tensor], moved: list[_Move]
) -> None:
    """Apply the order of each class to every parameter and buffer that has its channels, and list that."""
    all_orders = dict(orders)
    for channels, flat, positions in axes.flattened:
        order = orders.get(axes.root(channels))
        if order is not None:
            all_orders[axes.root(flat)] = (order[:, None] * positions + torch.arange(positions)).flatten()
    for name, axis in axes.parent:
        order = all_orders.get(axes.root((name, axis)))
        if order is not None and name in tensors:
            tensor = tensors[name]
            order = order.to(tensor.device)
            permuted = tensor.index_select(axis, order)
            moved.append(_Move(tensor, axis, order, tensor._version))  # before: an interrupt may come after
            tensor.copy_(permuted)
