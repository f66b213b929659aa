"""What the graph of an ONNX model says of its initializers: which are weights, and which axis is summed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

from fewbits.errors import ArgumentError, MissingDependencyError
from fewbits.files.layouts.onnx_model import SMALL, OnnxModel

if TYPE_CHECKING:
    from onnx import AttributeProto, GraphProto, ModelProto, NodeProto, TensorProto

_LISTS = ("float_data", "int32_data", "string_data", "int64_data", "double_data", "uint64_data")
KERNEL = -1  # in the place of an axis: the sum runs along all axes but the first


def all_nodes(graph: GraphProto) -> Iterator[NodeProto]:
    """Yield the nodes of a graph, and those of graphs inside them."""
    for node in graph.node:
        yield node
        for attribute in node.attribute:
            for inner in [*attribute.graphs, *([attribute.g] if attribute.HasField("g") else [])]:
                yield from all_nodes(inner)


def attribute(node: NodeProto, name: str) -> AttributeProto | None:
    """Return an attribute of a node, or None if it is not given."""
    return next((a for a in node.attribute if a.name == name), None)


def integer(node: NodeProto, name: str, default: int) -> int:
    """Return an attribute that is a number."""
    found = attribute(node, name)
    return default if found is None else int(found.i)


def sums(model: OnnxModel) -> dict[str, int]:
    """Return, for each initializer that is a weight of products and nothing else, the axis of their sums.

    It is that of the initializer's own shape; :data:`KERNEL` for the kernel of a convolution. An initializer
    that the caller of the model may replace is not among them.
    """
    graph, axes = model.proto.graph, dict[str, set[int | None]]()
    ranks = {name: len(tensor.shape) for name, tensor in model.initializers.items()}
    turned = _turned(graph, ranks)
    ranks |= {name: ranks[weight] for name, (weight, _) in turned.items()}
    for node in all_nodes(graph):
        for i, name in enumerate(node.input):
            if name in ranks and not any(output in turned for output in node.output):
                axes.setdefault(name, set()).add(_axis(node, i, ranks[name]))
    for value in graph.output:
        axes.setdefault(value.name, set()).add(None)
    for name, (weight, order) in turned.items():
        axes.setdefault(weight, set()).update(
            None if axis is None or axis == KERNEL else order[axis] for axis in axes.get(name, {None})
        )
    for value in [*graph.input, *graph.output]:
        axes.setdefault(value.name, set()).add(None)
    agreed = {name: next(iter(among)) for name, among in axes.items() if len(among) == 1}
    return {name: axis for name, axis in agreed.items() if axis is not None and name in model.initializers}


def _turned(graph: GraphProto, ranks: Mapping[str, int]) -> dict[str, tuple[str, tuple[int, ...]]]:
    """Return, by name, the values that are a transposed initializer: its name and the order of its axes."""
    found = {}
    for node in graph.node:
        if node.op_type == "Transpose" and node.domain in ("", "ai.onnx") and node.input[0] in ranks:
            rank, told = ranks[node.input[0]], attribute(node, "perm")
            order = tuple(range(rank))[::-1] if told is None else tuple(told.ints)
            if sorted(order) == list(range(rank)):
                found[node.output[0]] = (node.input[0], order)
    return found


def _axis(node: NodeProto, i: int, rank: int) -> int | None:
    """Return the axis of the sum for input ``i`` of a node; None if it is no weight there."""
    if node.domain not in ("", "ai.onnx") or rank < 2:
        return None
    if node.op_type == "MatMul":
        return rank - 1 if i == 0 else rank - 2
    if node.op_type == "Gemm" and i < 2 and rank == 2:
        if i == 0:
            return 1 - integer(node, "transA", 0)
        return integer(node, "transB", 0)
    if node.op_type == "Conv" and i == 1 and rank >= 3:
        return KERNEL
    if node.op_type in ("RNN", "GRU", "LSTM") and i in (1, 2) and rank == 3:
        return 2
    return None


def used_names(graph: GraphProto) -> Counter[str]:
    """Return how often each value is read, by a node or as an output of the graph."""
    return Counter(
        [name for node in all_nodes(graph) for name in node.input] + [value.name for value in graph.output]
    )


class Names:
    """New names for a graph."""

    def __init__(self, graph: GraphProto) -> None:
        nodes = list(all_nodes(graph))
        self._taken = {name for node in nodes for name in (node.name, *node.input, *node.output)}
        self._taken |= {t.name for t in graph.initializer}
        self._taken |= {value.name for value in [*graph.input, *graph.output, *graph.value_info]}

    def new(self, name: str) -> str:
        """Return this name, or one that begins so if there is one already."""
        while name in self._taken:
            name += "_"
        self._taken.add(name)
        return name


def with_opset(proto: ModelProto, needed: int) -> ModelProto:
    """Return a model of at least this version of the standard operators.

    The package converts it; large initializers take no part, as their numbers do not matter.

    Raises:
        ArgumentError: the package cannot convert the model.
        MissingDependencyError: the installed package does not know this version.
    """
    import onnx
    from onnx import helper, version_converter

    if needed > onnx.defs.onnx_opset_version():
        raise MissingDependencyError(
            f"this format needs opset {needed}, and the installed onnx {onnx.__version__} has"
            f" {onnx.defs.onnx_opset_version()}; install a later one"
        )
    own = next((o for o in proto.opset_import if o.domain in ("", "ai.onnx")), None)
    if own is not None and own.version < needed:
        if proto.functions:
            raise ArgumentError(
                f"the model has opset {own.version} and functions, and this format needs opset {needed};"
                " export it with that opset"
            )
        light = onnx.ModelProto()
        light.CopyFrom(proto)
        kept = [t for t in proto.graph.initializer if _is_small(t)]
        large = [t for t in proto.graph.initializer if not _is_small(t)]
        there = {value.name for value in proto.graph.input}
        del light.graph.initializer[:]
        light.graph.initializer.extend(kept)
        light.graph.input.extend(
            helper.make_tensor_value_info(t.name, t.data_type, t.dims) for t in large if t.name not in there
        )
        try:
            converted = version_converter.convert_version(light, needed)
        except Exception as error:  # of C++, by many names
            raise ArgumentError(
                f"the model has opset {own.version}, and onnx cannot convert it to opset {needed}, which this"
                f" format needs ({error!s:.200}); export it with that opset"
            ) from None
        inputs = [v for v in converted.graph.input if v.name in there]
        del converted.graph.input[:]
        converted.graph.input.extend(inputs)
        converted.graph.initializer.extend(large)
        proto.graph.CopyFrom(converted.graph)
        own.version = needed
    least = helper.find_min_ir_version_for(list(proto.opset_import), ignore_unknown=True)
    proto.ir_version = max(proto.ir_version, least)
    return proto


def _is_small(tensor: TensorProto) -> bool:
    """Return whether a tensor is in the model with its numbers, which are few."""
    lists = (getattr(tensor, name) for name in _LISTS)
    there = tensor.HasField("raw_data") or 0 in tensor.dims or any(len(numbers) for numbers in lists)
    return there and tensor.ByteSize() <= SMALL
