"""What a cast of an ONNX model leaves: weights that it does not reach, and the numbers of an older model."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from fewbits.errors import DataError
from fewbits.files.layouts.layout import package
from fewbits.files.layouts.onnx_forms import FLOATS
from fewbits.files.layouts.onnx_graph import all_nodes
from fewbits.files.layouts.onnx_model import DTYPES, load_model

if TYPE_CHECKING:
    from onnx import NodeProto, TensorProto


def wide_inside(path: Path) -> list[str]:
    """Return the names of floating-point matrices in Constant nodes, subgraphs and functions.

    A cast keeps them as they are: it takes initializers of the main graph alone.

    Raises:
        DataError: the model is damaged.
    """
    proto = load_model(path).proto
    nodes = [*all_nodes(proto.graph), *(n for f in proto.functions for m in f.node for n in _below(m))]
    return [name for node in nodes for name, tensor in _tensors_of(node) if _is_matrix(tensor)]


def numbers_beside(path: Path) -> set[Path]:
    """Return the files beside a model that hold its numbers; none if there is no model that can be read.

    Raises:
        MissingDependencyError: onnx is not installed.
    """
    if not path.is_file():
        return set()
    package("onnx", "onnx")
    try:
        model = load_model(path)
    except DataError:
        return set()
    held = [*model.initializers.values(), *(found for _, found in model.others)]
    return {tensor.file for tensor in held} - {path}


def _below(node: NodeProto) -> Iterator[NodeProto]:
    yield node
    for attribute in node.attribute:
        for graph in [*attribute.graphs, *([attribute.g] if attribute.HasField("g") else [])]:
            yield from all_nodes(graph)


def _tensors_of(node: NodeProto) -> Iterator[tuple[str, TensorProto]]:
    for attribute in node.attribute:
        if attribute.HasField("t"):
            yield attribute.t.name or node.output[0], attribute.t
        for graph in [*attribute.graphs, *([attribute.g] if attribute.HasField("g") else [])]:
            yield from ((tensor.name, tensor) for tensor in graph.initializer)


def _is_matrix(tensor: TensorProto) -> bool:
    from onnx import TensorProto

    names = {number: name for name, number in TensorProto.DataType.items()}
    return len(tensor.dims) >= 2 and DTYPES.get(names.get(tensor.data_type, "")) in FLOATS
