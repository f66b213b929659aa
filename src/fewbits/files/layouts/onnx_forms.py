"""How a narrow weight is written in an ONNX graph: codes, scales, and the operators that multiply them.

The last operator has the name of the weight, so that nothing else in the graph changes. Two forms, for a
weight [k, n] with blocks of 32 along its first axis:

- that of the standard: DequantizeLinear(codes [k, n], scales [k / 32, n]), where the scales of NVFP4 are a
  DequantizeLinear themselves, of E4M3 and the outer scale;
- for what has no kernels of four-bit floats, and no exponents in DequantizeLinear, as ONNX Runtime on CPUs:
  Reshape(Gather(table, Cast(codes [k / 32, 32, n])) * Cast(scales [k / 32, 1, n])), with codes in UINT4, and
  for wider codes DequantizeLinear(codes, Cast(scales)); an outer scale is multiplied last.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import prod
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from fewbits.errors import ArgumentError
from fewbits.files.byte_layout import TensorLayout
from fewbits.files.layouts.layout import BF16, FP32
from fewbits.files.layouts.onnx_graph import KERNEL, Names
from fewbits.files.layouts.onnx_model import Initializer
from fewbits.files.layouts.onnx_order import Order
from fewbits.files.safetensors_header import HeaderEntry
from fewbits.formats import CATALOGUE, Block, Element, Fixed, Float, Format

if TYPE_CHECKING:
    from onnx import NodeProto, TensorProto

BLOCKED_OPSET = 21  # of DequantizeLinear with blocks
FP16, E8M0, E4M3 = Float(5, 10, 15, "ieee"), CATALOGUE["e8m0"].format, CATALOGUE["fp8_e4m3"].format
E2M1 = CATALOGUE["fp4_e2m1"].format


class _Type(NamedTuple):
    dtype: str  # in the spelling of safetensors
    opset: int  # the first one whose operators have it


CODES: Mapping[Format, _Type] = {
    E2M1: _Type("F4", 23),
    CATALOGUE["fp6_e2m3"].format: _Type("F6_E2M3", 28),
    CATALOGUE["fp6_e3m2"].format: _Type("F6_E3M2", 28),
    E4M3: _Type("F8_E4M3", BLOCKED_OPSET),
    CATALOGUE["fp8_e5m2"].format: _Type("F8_E5M2", BLOCKED_OPSET),
    **{Fixed(8, 0, coding): _Type("I8", BLOCKED_OPSET) for coding in ("symmetric", "twos_complement")},
    **{Fixed(4, 0, coding): _Type("I4", BLOCKED_OPSET) for coding in ("symmetric", "twos_complement")},
    **{Fixed(2, 0, coding): _Type("I2", 25) for coding in ("symmetric", "twos_complement")},
}
SCALES: Mapping[Format, _Type] = {
    E8M0: _Type("F8_E8M0", 24),
    FP32: _Type("F32", BLOCKED_OPSET),
    FP16: _Type("F16", BLOCKED_OPSET),
    BF16: _Type("BF16", BLOCKED_OPSET),
    E4M3: _Type("F8_E4M3", BLOCKED_OPSET),
}
FLOATS = {"F32": "FLOAT", "F16": "FLOAT16", "BF16": "BFLOAT16"}  # of weights
TABLE = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6, -0.0, -0.5, -1, -1.5, -2, -3, -4, -6], np.float32)


def has_place(format: Format, *, for_runtime: bool) -> bool:
    """Return whether a graph can hold a format, in the form for ONNX Runtime or that of the standard."""
    if not isinstance(format, Block) or format.element not in CODES or format.scale not in SCALES:
        return False
    if for_runtime and CODES[format.element].dtype.startswith("F6"):
        return False  # neither a kernel nor a type of six bits to look them up with
    outer = format.groups.outer
    return outer is None or (format.scale == E4M3 and outer.size == "tensor" and format.outer == FP32)


class Part(NamedTuple):
    """An initializer that holds a part."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    order: Order

    @property
    def entry(self) -> HeaderEntry:
        """Its bytes."""
        return HeaderEntry(self.dtype, self.shape)


@dataclass(frozen=True)
class Form:
    """A narrow weight in a graph."""

    becomes: TensorLayout
    parts: Mapping[str, Part]  # by the suffixes of docs/layout.md
    constants: tuple[TensorProto, ...]
    nodes: tuple[NodeProto, ...]
    opset: int


def form(weight: Initializer, format: Block, names: Names, *, for_runtime: bool) -> Form:
    """Return a weight as it is written.

    Raises:
        ArgumentError: its rows are not whole blocks.
    """
    return _Writer(weight, format, names, for_runtime).form()


def summed(weight: Initializer) -> tuple[tuple[int, ...], int]:
    """Return the shape in which a weight is cut into blocks, and the axis along which they run."""
    assert weight.sums is not None
    shape = weight.shape
    return ((shape[0], prod(shape[1:])), 1) if weight.sums == KERNEL else (shape, weight.sums)


class _Writer:
    def __init__(self, weight: Initializer, format: Block, names: Names, for_runtime: bool) -> None:
        assert weight.sums is not None
        assert isinstance(format.scale, Element)
        self.weight, self.format, self.names, self.for_runtime = weight, format, names, for_runtime
        self.is_kernel = weight.sums == KERNEL
        self.matrix, self.axis = summed(weight)
        self.row = self.matrix[self.axis]
        size = format.size
        if isinstance(size, int) and self.row % size:
            layout = "onnxruntime" if for_runtime else "onnx"
            raise ArgumentError(
                f"{weight.name!r:.200} has sums of {self.row} values, and {format.name:.100} in"
                f" layout={layout!r} takes multiples of {size}; name it in `exclude`"
            )
        self.size = size if isinstance(size, int) else self.row
        # One scale for each row of a matrix: DequantizeLinear has a form of its own for it.
        self.per_axis = size == "channel" and len(self.matrix) == 2
        self.per_tensor = size == "tensor"
        self.looks_up = for_runtime and format.element == E2M1
        self.constants: list[TensorProto] = []
        self.nodes: list[NodeProto] = []

    def form(self) -> Form:
        """Return the parts and operators."""
        parts = {"codes": self._codes(), "scales": self._scales()}
        outer = self.format.groups.outer
        if outer is not None:
            parts["outer"] = Part(self._named("scale_scale"), "F32", (), Order((1,), 0, 32))
        scales = self._wide_scales(parts)
        if self.looks_up:
            value = self._looked_up(parts["codes"].name, scales)
        else:
            value = self._dequantized(parts["codes"].name, scales)
        if "outer" in parts and self.for_runtime:  # last, so that only this product is rounded
            value = self._node("Mul", [value, parts["outer"].name], "scaled")
        self._finish(value, parts["codes"].shape)
        assert isinstance(self.format.scale, Element)
        opset = max(
            BLOCKED_OPSET if self.looks_up else CODES[self.format.element].opset,
            SCALES[self.format.scale].opset,
        )
        view = self.matrix if self.is_kernel else None
        becomes = TensorLayout(self.format, self.weight.shape, self.axis, self.weight.dtype, view)
        return Form(becomes, parts, tuple(self.constants), tuple(self.nodes), opset)

    def _named(self, end: str) -> str:
        return self.names.new(f"{self.weight.name}_{end}")

    def _split(self, groups: int, size: int) -> tuple[int, ...]:
        """Return the shape of the matrix with the axis of sums as (groups, size)."""
        return (*self.matrix[: self.axis], groups, size, *self.matrix[self.axis + 1 :])

    def _codes(self) -> Part:
        order = Order(self.matrix, self.axis, self.format.element.bits)
        if self.looks_up:
            shape = self.matrix if self.per_tensor else self._split(self.row // self.size, self.size)
            return Part(self._named("quantized"), "U4", shape, order)
        whole = self.is_kernel and (self.per_axis or self.per_tensor)
        shape = self.weight.shape if whole else self.matrix
        return Part(self._named("quantized"), CODES[self.format.element].dtype, shape, order)

    def _scales(self) -> Part:
        assert isinstance(self.format.scale, Element)
        name, dtype = self._named("scale"), SCALES[self.format.scale].dtype
        bits = self.format.scale.bits
        if self.per_tensor:
            return Part(name, dtype, (), Order((1,), 0, bits))
        groups = self.row // self.size
        shape = (*self.matrix[: self.axis], groups, *self.matrix[self.axis + 1 :])
        order = Order(shape, self.axis, bits)
        if self.looks_up:
            shape = self._split(groups, 1)
        elif self.per_axis:
            shape = (prod(shape),)
        return Part(name, dtype, shape, order)

    def _node(self, kind: str, inputs: list[str], end: str, **attributes: int) -> str:
        from onnx import helper

        output = self._named(end)
        node = helper.make_node(kind, inputs, [output], name=self.names.new(f"{output}/{kind}"))
        node.attribute.extend(helper.make_attribute(key, value) for key, value in attributes.items())
        self.nodes.append(node)
        return output

    def _wide_scales(self, parts: Mapping[str, Part]) -> str:
        """Return the name of the scales as DequantizeLinear or the product take them."""
        from onnx import TensorProto

        scales = parts["scales"]
        if "outer" in parts and not self.for_runtime:
            return self._node("DequantizeLinear", [scales.name, parts["outer"].name], "scale_float")
        if scales.dtype == "F32" or (scales.dtype == "F8_E8M0" and not self.for_runtime):
            return scales.name
        return self._node("Cast", [scales.name], "scale_float", to=TensorProto.FLOAT)

    def _dequantized(self, codes: str, scales: str) -> str:
        from onnx import TensorProto

        told: dict[str, int] = {}
        if self.per_axis:
            told["axis"] = 1 - self.axis
        elif not self.per_tensor:
            told |= {"axis": self.axis, "block_size": self.size}
        if self.format.scale == E8M0 and not self.for_runtime:
            told["output_dtype"] = TensorProto.FLOAT
        return self._node("DequantizeLinear", [codes, scales], "float", **told)

    def _looked_up(self, codes: str, scales: str) -> str:
        from onnx import TensorProto, numpy_helper

        table = numpy_helper.from_array(TABLE, self._named("table"))
        self.constants.append(table)
        indices = self._node("Cast", [codes], "indices", to=TensorProto.INT32)
        elements = self._node("Gather", [table.name, indices], "elements", axis=0)
        return self._node("Mul", [elements, scales], "product")

    def _finish(self, value: str, shape: tuple[int, ...]) -> None:
        """Bring the values to the dtype and shape of the weight, under its name."""
        from onnx import TensorProto, numpy_helper

        weight = self.weight
        if weight.dtype != "F32":
            to = TensorProto.DataType.Value(FLOATS[weight.dtype])
            value = self._node("Cast", [value], "rounded", to=to)
        if shape != weight.shape:
            whole = numpy_helper.from_array(np.array(weight.shape, np.int64), self._named("shape"))
            self.constants.append(whole)
            value = self._node("Reshape", [value, whole.name], "whole")
        last = self.nodes[-1]
        assert last.output[0] == value
        last.output[0] = weight.name
