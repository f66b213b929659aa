"""What each operation of a graph does to the axes of its tensors.

An operation that is not here fixes every axis that it reads or writes: what is unknown is left alone.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable
from math import prod

import torch
from torch import fx

from fewbits.sparsity.channels import Axes, argument, matched, shape

Rule = Callable[[Axes, fx.Node], None]


def apply(axes: Axes, node: fx.Node) -> None:
    """Record in ``axes`` what the operation of one node does to the axes of its tensors."""
    name = _name(node)
    if name in _RULES:
        _RULES[name](axes, node)
    elif torch.Tag.pointwise in getattr(node.target, "tags", ()):
        _pointwise(axes, node)
    elif name not in _FREE:
        _unknown(axes, node)


def _name(node: fx.Node) -> str:
    """Return the operation's name, ``relu`` for ``aten.relu_.default``: in-place forms have the same rule."""
    packet = getattr(node.target, "overloadpacket", None)
    return getattr(node.target, "__name__", str(node.target)) if packet is None else _plain(packet.__name__)


def _plain(name: str) -> str:
    return name if name.startswith("_") else name.rstrip("_")


def _operands(node: fx.Node) -> list[fx.Node]:
    """Return the tensor arguments of an operation in order; one that is passed twice appears twice."""
    return [tensor for tensor in (*node.args, *node.kwargs.values()) if isinstance(tensor, fx.Node)]


def _unknown(axes: Axes, node: fx.Node) -> None:
    for tensor in (*node.all_input_nodes, node):
        axes.fix_all(tensor, f"{_name(node)} is not known to treat its neighbours alike")


def _aligned(axes: Axes, node: fx.Node, out: fx.Node, last: int | None = None) -> None:
    """Join each axis of ``node``, up to ``last``, with the axis of ``out`` that it is broadcast to."""
    offset = len(shape(out)) - len(shape(node))
    for axis, n in enumerate(shape(node)[:last]):
        if n == shape(out)[axis + offset]:
            axes.join(node, axis, out, axis + offset)


def _pointwise(axes: Axes, node: fx.Node) -> None:
    for tensor in node.all_input_nodes:
        _aligned(axes, tensor, node)


def _as_first(axes: Axes, node: fx.Node) -> None:
    _aligned(axes, node.all_input_nodes[0], node)


def _paired(axes: Axes, node: fx.Node, paired: Iterable[tuple[int, int]], why: str) -> None:
    """Join the axes of input and output that are paired, and fix all others."""
    source, pairs = node.all_input_nodes[0], list(paired)
    for axis, out in pairs:
        axes.join(source, axis, node, out)
    for tensor, side in ((source, 0), (node, 1)):
        joined = {pair[side] for pair in pairs}
        for axis in set(range(len(shape(tensor)))) - joined:
            axes.fix(tensor, axis, why)


def _reordered(axes: Axes, node: fx.Node) -> None:
    source, name = node.all_input_nodes[0], _name(node)
    order = list(range(len(shape(source))))
    if name == "permute":
        order = [d % len(order) for d in argument(node, "dims")]
    elif name == "numpy_T":  # of all axes, where mT is of the last two
        order.reverse()
    elif len(order) > 1:
        a, b = (-2, -1) if name in ("t", "mT") else (argument(node, "dim0"), argument(node, "dim1"))
        order[a], order[b] = order[b], order[a]
    for out, axis in enumerate(order):
        axes.join(source, axis, node, out)


def _viewed(axes: Axes, node: fx.Node) -> None:
    source = node.all_input_nodes[0]
    if prod(shape(source)) != prod(shape(node)) or not prod(shape(node)):
        _unknown(axes, node)  # a dtype of another size, or no values by which axes could be told apart
        return
    for before, after in matched(shape(source), shape(node)):
        if len(before) == len(after) == 1:
            axes.join(source, before[0], node, after[0])
            continue
        merged = len(after) == 1
        if merged:
            positions = shape(node)[after[0]] // shape(source)[before[0]]
            axes.flatten(source, before[0], node, after[0], positions)
        for tensor, these in ((source, before[merged:]), (node, after[merged:])):
            for axis in these:
                axes.fix(tensor, axis, f"{_name(node)} divides its channels, as attention does into heads")


def _linear(axes: Axes, node: fx.Node) -> None:
    x, weight, *bias = _operands(node)
    for axis in range(len(shape(x)) - 1):
        axes.join(x, axis, node, axis)
    axes.join(x, -1, weight, 1)
    axes.join(weight, 0, node, -1)
    axes.consumed[axes.of(weight, 1)] = None
    for tensor in bias:
        _aligned(axes, tensor, node)


def _matmul(axes: Axes, node: fx.Node) -> None:
    *added, a, b = _operands(node)
    if len(shape(a)) < 2 or len(shape(b)) < 2:
        _unknown(axes, node)
        return
    axes.join(a, -1, b, -2)
    axes.join(a, -2, node, -2)
    axes.join(b, -1, node, -1)
    for tensor in (a, b):
        _aligned(axes, tensor, node, last=-2)
    for tensor in added:
        _aligned(axes, tensor, node)


def _convolution(axes: Axes, node: fx.Node) -> None:
    x, weight, *bias = _operands(node)
    channel = len(shape(x)) - len(shape(weight)) + 1  # 0 for an input without a batch axis
    groups, out, per_group = argument(node, "groups"), *shape(weight)[:2]
    for tensor in (x, node):
        for axis in range(channel + 1, len(shape(tensor))):
            axes.fix(tensor, axis, "positions of a convolution")
    for axis in range(2, len(shape(weight))):
        axes.fix(weight, axis, "positions of a convolution")
    if channel:
        axes.join(x, 0, node, 0)
    axes.join(weight, 0, node, channel)
    for tensor in bias:
        axes.join(tensor, 0, node, channel)
    if groups == 1:
        axes.join(x, channel, weight, 1)
        axes.consumed[axes.of(weight, 1)] = None
    elif per_group == 1 and groups == out:  # depthwise
        axes.join(x, channel, weight, 0)
    else:
        for tensor, axis in ((x, channel), (weight, 0), (weight, 1)):
            axes.fix(tensor, axis, f"a convolution in {groups} groups keeps its channels apart")


def _channel_norm(axes: Axes, node: fx.Node) -> None:
    x, *rest = _operands(node)
    groups = argument(node, "num_groups")
    if groups not in (None, 1, shape(x)[1]):
        _unknown(axes, node)
        return
    _aligned(axes, x, node)
    for tensor in rest:
        axes.join(tensor, 0, node, 1)


def _trailing_norm(axes: Axes, node: fx.Node) -> None:
    for tensor in node.all_input_nodes:
        _aligned(axes, tensor, node)


def _pooled(axes: Axes, node: fx.Node) -> None:
    spatial = int(next(c for c in _name(node) if c.isdigit()))
    leading = range(len(shape(node)) - spatial)
    _paired(axes, node, ((i, i) for i in leading), "positions of a pool")


def _reduced(axes: Axes, node: fx.Node) -> None:
    source = node.all_input_nodes[0]
    dims, rank = argument(node, "dim"), len(shape(source))
    reduced = [dims] if isinstance(dims, int) else dims or range(rank)
    gone = {d % rank for d in reduced}
    left = [axis for axis in range(rank) if axis not in gone]
    for out, axis in enumerate(left):
        axes.join(source, axis, node, axis if argument(node, "keepdim") else out)


def _embedding(axes: Axes, node: fx.Node) -> None:
    weight, indices = _operands(node)
    axes.fix(weight, 0, "indices choose among its rows")
    axes.join(weight, 1, node, -1)
    for axis in range(len(shape(indices))):
        axes.join(indices, axis, node, axis)


def _concatenated(axes: Axes, node: fx.Node) -> None:
    along = argument(node, "dim") % len(shape(node))
    for tensor in node.all_input_nodes:
        for axis in range(len(shape(tensor))):
            if axis != along:
                axes.join(tensor, axis, node, axis)
        axes.fix(tensor, along, "concatenated with others")
    axes.fix(node, along, "concatenated of several")


def _stacked(axes: Axes, node: fx.Node) -> None:
    along = argument(node, "dim") % len(shape(node))
    for tensor in node.all_input_nodes:
        for axis in range(len(shape(tensor))):
            axes.join(tensor, axis, node, axis + (axis >= along))
    axes.fix(node, along, "stacked of several")


def _selected(axes: Axes, node: fx.Node) -> None:
    gone = argument(node, "dim") % len(shape(node.all_input_nodes[0]))
    rest = range(len(shape(node)))
    _paired(axes, node, ((i + (i >= gone), i) for i in rest), "one of its channels is selected")


def _sliced(axes: Axes, node: fx.Node) -> None:
    before, after = shape(node.all_input_nodes[0]), shape(node)
    same = (i for i, n in enumerate(after) if n == before[i])
    _paired(axes, node, ((i, i) for i in same), f"{_name(node)} takes a part of its channels")


def _padded(axes: Axes, node: fx.Node) -> None:
    rank, pad = len(shape(node)), argument(node, "pad")  # two numbers for each axis, the last axis first
    padded = {rank - 1 - i // 2 for i, n in enumerate(pad) if n}
    _paired(axes, node, ((i, i) for i in range(rank) if i not in padded), "padded")


def _item(axes: Axes, node: fx.Node) -> None:
    """Handle ``result[i]`` of an operation with several results, which is known if it splits a tensor."""
    cut = node.args[0]
    assert isinstance(cut, fx.Node)
    name, source = _name(cut), cut.all_input_nodes[0]
    if name not in _CUTS:
        axes.fix_all(node, f"{name} is not known to treat its neighbours alike")
        return
    along = argument(cut, "dim") % len(shape(source))
    axes.fix(source, along, f"{name} cuts its channels in parts")
    shift = len(shape(source)) - len(shape(node))  # unbind takes an axis away
    for axis in range(len(shape(node))):
        if shift and axis >= along:
            axes.join(source, axis + 1, node, axis)
        elif axis != along:
            axes.join(source, axis, node, axis)
        else:
            axes.fix(node, axis, f"{name} cuts its channels in parts")


def _attention(axes: Axes, node: fx.Node) -> None:
    query, key, value, *rest = _operands(node)
    if any(shape(tensor)[:-2] != shape(node)[:-2] for tensor in (query, key, value)):
        _unknown(axes, node)  # groups of queries share a key, or what is broadcast
        return
    for axis in range(len(shape(query)) - 2):
        for tensor in (query, key, value):
            axes.join(tensor, axis, node, axis)
    axes.join(query, -1, key, -1)
    axes.join(key, -2, value, -2)
    axes.join(value, -1, node, -1)
    axes.join(query, -2, node, -2)
    if rest or argument(node, "is_causal"):
        for tensor in (query, key):
            axes.fix(tensor, -2, "positions of attention")
        for tensor in rest:  # its other axes are those of the heads and the batch, or broadcast to them
            _aligned(axes, tensor, node, last=-2)
            for axis in range(len(shape(tensor)))[-2:]:
                axes.fix(tensor, axis, "a mask of attention")


def _table(*entries: tuple[str, Rule]) -> dict[str, Rule]:
    return {name: rule for names, rule in entries for name in names.split()}


_CUTS = ("chunk", "split", "split_with_sizes", "unbind", "tensor_split")
# Operations that read no values whose order a permutation changes.
_FREE = (
    *_CUTS,
    "zeros",
    "ones",
    "full",
    "zeros_like",
    "ones_like",
    "full_like",
    "new_zeros",
    "new_ones",
    "_assert_tensor_metadata",
)
_POOLS = " ".join(
    f"{kind}{n}d"
    for kind in ("max_pool", "avg_pool", "adaptive_avg_pool", "upsample_nearest")
    for n in (1, 2, 3)
)
_RULES = _table(
    ("contiguous clone to _to_copy type_as dropout feature_dropout alias detach hardswish expand", _as_first),
    ("softmax log_softmax _softmax _log_softmax", _as_first),
    ("t mT numpy_T transpose permute", _reordered),
    ("view reshape flatten unflatten unsqueeze squeeze _unsafe_view", _viewed),
    ("linear", _linear),
    ("matmul mm bmm addmm baddbmm", _matmul),
    ("conv1d conv2d conv3d", _convolution),
    ("batch_norm instance_norm group_norm", _channel_norm),
    ("layer_norm rms_norm", _trailing_norm),
    (_POOLS, _pooled),
    ("mean sum amax amin var", _reduced),
    ("embedding", _embedding),
    ("cat", _concatenated),
    ("stack", _stacked),
    ("select", _selected),
    ("slice narrow", _sliced),
    ("pad constant_pad_nd", _padded),
    ("scaled_dot_product_attention", _attention),
    (operator.getitem.__name__, _item),
)
