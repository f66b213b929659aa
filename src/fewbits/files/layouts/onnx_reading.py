"""Narrow weights in the graph of an ONNX model, written by fewbits, ONNX Runtime's tools or others.

A constant under a DequantizeLinear, without zero points, with a scale for the tensor, for each channel or for
each block; and the form with a table. Operators that only change dtype or shape belong to the weight.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import prod
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from fewbits.errors import FormatError
from fewbits.files.byte_layout import TensorLayout
from fewbits.files.layouts.onnx_forms import CODES, E2M1, SCALES, TABLE
from fewbits.files.layouts.onnx_graph import attribute, integer, used_names
from fewbits.files.layouts.onnx_model import Initializer, OnnxModel
from fewbits.files.layouts.onnx_order import Order
from fewbits.formats import Block, Element, Format

if TYPE_CHECKING:
    from onnx import GraphProto, NodeProto

# Of integers the element that has every code; of scales and codes the format of a dtype.
_ELEMENTS = {told.dtype: fmt for fmt, told in CODES.items() if getattr(fmt, "coding", "") != "symmetric"}
_SCALES = {told.dtype: fmt for fmt, told in SCALES.items()}
_MOST_CONSTANTS = 1 << 20  # bytes of zero points, a table or a shape that are read to know what they are


@dataclass(frozen=True)
class Found:
    """A narrow weight of a graph."""

    name: str  # of the value that the rest of the graph reads
    layout: TensorLayout
    parts: Mapping[str, tuple[Initializer, Order]]  # by the suffixes of docs/layout.md
    nodes: frozenset[str]  # what the operators that make it give out


class _Scale(NamedTuple):
    stored: Initializer
    outer: Initializer | None
    nodes: frozenset[str]
    dtype: str  # of the product with it

    @property
    def can_have_outer(self) -> bool:
        return self.stored.dtype == "F8_E4M3" and self.outer is None and self.dtype == "F32"


class _Blocks(NamedTuple):
    """How a matrix is cut."""

    matrix: tuple[int, ...]
    axis: int
    size: int | str
    shape: tuple[int, ...]  # of the weight, unless operators change it


def narrow_weights(model: OnnxModel) -> list[Found]:
    """Return the narrow weights of a model."""
    return _Reader(model).found()


def without(graph: GraphProto, found: list[Found]) -> tuple[list[NodeProto], frozenset[str]]:
    """Return the operators that stay when weights are whole again, and the initializers that do not."""
    gone = frozenset().union(*(weight.nodes for weight in found))
    left = [node for node in graph.node if not gone.intersection(node.output)]
    rest = type(graph)()
    rest.node.extend(left)
    rest.output.extend(graph.output)
    used, was_used = used_names(rest), used_names(graph)
    return left, frozenset(t.name for t in graph.initializer if was_used[t.name] and not used[t.name])


class _Reader:
    def __init__(self, model: OnnxModel) -> None:
        self.model, self.graph = model, model.proto.graph
        inputs = {value.name for value in self.graph.input}  # which the caller may replace
        self.constants = {n: t for n, t in model.initializers.items() if n not in inputs}
        self.made_by = {output: node for node in self.graph.node for output in node.output}
        self.readers: dict[str, list[NodeProto]] = {}
        for node in self.graph.node:
            for name in node.input:
                self.readers.setdefault(name, []).append(node)
        self.uses = used_names(self.graph)

    def found(self) -> list[Found]:
        """Return all that is known."""
        found = []
        for node in self.graph.node:
            if node.domain not in ("", "ai.onnx") or not node.output:
                continue
            if node.op_type == "Gather":
                weight = self._looked_up(node)
            elif node.op_type == "DequantizeLinear":
                weight = self._dequantized(node)
            else:
                continue
            if weight is not None:
                found.append(weight)
        scales = frozenset().union(*(weight.nodes - {weight.name} for weight in found))
        return [weight for weight in found if weight.name not in scales]

    def _dequantized(self, node: NodeProto) -> Found | None:
        codes = self.constants.get(node.input[0])
        scale = self._scale(node.input[1]) if len(node.input) > 1 else None
        if codes is None or scale is None or codes.dtype not in _ELEMENTS or not codes.count:
            return None
        if len(node.input) > 2 and node.input[2] and not self._is_zero(node.input[2]):
            return None
        axis, size = integer(node, "axis", 1), integer(node, "block_size", 0)
        blocks = _cut(codes.shape, scale.stored.shape, axis, size)
        told = attribute(node, "output_dtype")
        dtype = scale.dtype if told is None or not told.i else _float(told.i)
        if blocks is None or dtype is None:
            return None
        return self._whole(node, codes, scale, blocks, _ELEMENTS[codes.dtype], dtype)

    def _looked_up(self, node: NodeProto) -> Found | None:
        """Return Gather(table, Cast(codes)) * scales, if this node is the Gather of one."""
        cast = self.made_by.get(node.input[1])
        codes = self.constants.get(cast.input[0]) if cast is not None and cast.op_type == "Cast" else None
        if codes is None or codes.dtype != "U4" or not self._is_table(node.input[0]):
            return None
        product = self._only_reader(node.output[0])
        if product is None or product.op_type != "Mul":
            return None
        (other,) = [name for name in product.input if name != node.output[0]] or [""]
        scale = self._scale(other)
        blocks = None if scale is None else _split(codes.shape, scale.stored.shape)
        if scale is None or blocks is None:
            return None
        nodes = scale.nodes | {node.output[0], *(cast.output if cast is not None else ())}
        return self._whole(product, codes, scale._replace(nodes=nodes), blocks, E2M1, "F32")

    def _whole(
        self,
        node: NodeProto,
        codes: Initializer,
        scale: _Scale,
        blocks: _Blocks,
        element: Format,
        dtype: str,
    ) -> Found | None:
        """Return the weight that a node makes, with what changes its dtype and shape behind it."""
        name, nodes, shape, view = node.output[0], {*scale.nodes, node.output[0]}, blocks.shape, None
        if shape != blocks.matrix:
            view = blocks.matrix
        while (after := self._only_reader(name)) is not None:
            if after.op_type == "Mul" and scale.can_have_outer and (outer := self._outer(after, name)):
                scale = scale._replace(outer=outer)
            elif after.op_type == "Cast" and (to := _float(integer(after, "to", 0))) is not None:
                if dtype not in (to, "F32"):
                    break  # the values are rounded already: a wider dtype would undo that
                dtype = to
            elif after.op_type == "Reshape" and after.input[0] == name:
                target = self._shape(after.input[1])
                can_be = target is not None and prod(target) == prod(shape) and len(blocks.matrix) == 2
                if target is None or not (target == blocks.matrix or (can_be and blocks.axis == 1)):
                    break
                shape, view = target, None if target == blocks.matrix else blocks.matrix
            else:
                break
            name = after.output[0]
            nodes.add(name)
        assert isinstance(element, Element)
        above = None if scale.outer is None else _SCALES["F32"]
        scales = _SCALES[scale.stored.dtype]
        assert isinstance(scales, Element)
        assert above is None or isinstance(above, Element)
        try:
            format = Block(element, scales, blocks.size, above)
        except FormatError:  # blocks larger than any format has them
            return None
        layout = TensorLayout(format, shape, blocks.axis, dtype, view)
        groups = _grouped(blocks)
        parts = {
            "codes": (codes, Order(blocks.matrix, blocks.axis, element.bits)),
            "scales": (scale.stored, Order(groups, min(blocks.axis, len(groups) - 1), scales.bits)),
        }
        if scale.outer is not None:
            parts["outer"] = (scale.outer, Order((1,), 0, 32))
        return Found(name, layout, parts, frozenset(nodes))

    def _scale(self, name: str) -> _Scale | None:
        """Return the scales behind a name: a constant, a constant in FP32, or one with a scale of its own."""
        if name in self.constants:
            stored = self.constants[name]
            known = stored.dtype in ("F32", "F16", "BF16", "F8_E8M0")
            return _Scale(stored, None, frozenset(), stored.dtype) if known else None
        node = self.made_by.get(name)
        if node is None or node.input[0] not in self.constants or self.uses[name] != 1:
            return None
        stored, nodes = self.constants[node.input[0]], frozenset([name])
        if node.op_type == "Cast" and _float(integer(node, "to", 0)) == "F32" and stored.dtype in _SCALES:
            return _Scale(stored, None, nodes, "F32")
        outer = self.constants.get(node.input[1]) if len(node.input) == 2 else None
        is_scaled = node.op_type == "DequantizeLinear" and stored.dtype == "F8_E4M3"
        if is_scaled and outer is not None and outer.dtype == "F32" and outer.count == 1:
            return _Scale(stored, outer, nodes, "F32")
        return None

    def _outer(self, product: NodeProto, value: str) -> Initializer | None:
        """Return the one number that a product multiplies a value by."""
        (other,) = [name for name in product.input if name != value] or [""]
        found = self.constants.get(other)
        return found if found is not None and found.dtype == "F32" and found.shape in ((), (1,)) else None

    def _only_reader(self, name: str) -> NodeProto | None:
        readers = self.readers.get(name, [])
        is_only = len(readers) == 1 and self.uses[name] == 1
        return readers[0] if is_only and readers[0].domain in ("", "ai.onnx") else None

    def _values(self, name: str, dtypes: tuple[str, ...]) -> bytes | None:
        constant = self.constants.get(name)
        if constant is None or constant.dtype not in dtypes or constant.stored_bytes > _MOST_CONSTANTS:
            return None
        with constant.file.open("rb") as file:
            return bytes(constant.read(file, 0, constant.stored_bytes))

    def _is_zero(self, name: str) -> bool:
        octets = self._values(name, tuple(_ELEMENTS))
        return octets is not None and not any(octets)

    def _is_table(self, name: str) -> bool:
        return self._values(name, ("F32",)) == TABLE.astype("<f4").tobytes()

    def _shape(self, name: str) -> tuple[int, ...] | None:
        octets = self._values(name, ("I64",))
        shape = None if octets is None else tuple(int(n) for n in np.frombuffer(octets, "<i8"))
        return shape if shape and all(n > 0 for n in shape) else None


def _float(number: int) -> str | None:
    from onnx import TensorProto

    names: dict[int, str] = {
        TensorProto.FLOAT: "F32",
        TensorProto.FLOAT16: "F16",
        TensorProto.BFLOAT16: "BF16",
    }
    return names.get(number)


def _cut(shape: tuple[int, ...], scales: tuple[int, ...], axis: int, size: int) -> _Blocks | None:
    """Return how DequantizeLinear cuts an array; None if no format does, as with a scale for each value."""
    rank = len(shape)
    axis += rank if axis < 0 else 0
    if rank and not size and prod(scales) == 1:
        return _Blocks(shape, rank - 1, "tensor", shape)
    if rank < 2 or not 0 <= axis < rank:
        return None
    if size > 0:
        groups = (*shape[:axis], -(-shape[axis] // size), *shape[axis + 1 :])
        return _Blocks(shape, axis, size, shape) if scales == groups else None
    if scales != (shape[axis],):
        return None
    if rank == 2:
        return _Blocks(shape, 1 - axis, "channel", shape)
    return _Blocks((shape[0], prod(shape[1:])), 1, "channel", shape) if axis == 0 else None


def _split(codes: tuple[int, ...], scales: tuple[int, ...]) -> _Blocks | None:
    """Return how scales that are multiplied cut an array: one for the items of one axis, and for the next."""
    if not scales:
        return _Blocks(codes, len(codes) - 1, "tensor", codes) if codes else None
    if len(codes) != len(scales):
        return None
    differ = [i for i, (n, groups) in enumerate(zip(codes, scales, strict=True)) if n != groups]
    if len(differ) != 1 or differ[0] == 0 or scales[differ[0]] != 1:
        return None
    at = differ[0]
    matrix = (*codes[: at - 1], codes[at - 1] * codes[at], *codes[at + 1 :])
    return _Blocks(matrix, at - 1, codes[at], codes)  # the axes of the codes, unless a Reshape is behind them


def _grouped(blocks: _Blocks) -> tuple[int, ...]:
    """Return the shape of the scales, in the axes of the matrix."""
    if blocks.size == "tensor":
        return (1,)
    size = blocks.size if isinstance(blocks.size, int) else max(blocks.matrix[blocks.axis], 1)
    groups = -(-blocks.matrix[blocks.axis] // size)
    return (*blocks.matrix[: blocks.axis], groups, *blocks.matrix[blocks.axis + 1 :])
