"""ONNX: a model whose weights are narrow constants; the package writes and reads all but their numbers.

The source is a model too: a checkpoint has no graph. The operators that read an initializer say whether it is
a weight, and along which axis its products are added.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from fewbits.errors import ArgumentError, DataError
from fewbits.files.checkpoint import StoredTensor
from fewbits.files.destination import Destination
from fewbits.files.encoding import Encoding, Plan, Put, Write
from fewbits.files.layouts.layout import Layout, Reading, Request, package
from fewbits.files.layouts.onnx_forms import FLOATS, Form, form, has_place, summed
from fewbits.files.layouts.onnx_graph import Names, sums, with_opset
from fewbits.files.layouts.onnx_model import (
    SUFFIX,
    Initializer,
    OnnxModel,
    described,
    embed_others,
    headers,
    is_external,
    load_model,
    refuse_clashes,
)
from fewbits.files.layouts.onnx_order import Order, Reordered
from fewbits.files.layouts.onnx_reading import Found, narrow_weights, without
from fewbits.files.model_folder import ModelFolder
from fewbits.files.narrow_tensor import AnyStoredTensor, StoredNarrowTensor
from fewbits.files.safetensors_header import HeaderEntry, width
from fewbits.formats import Block, Format

if TYPE_CHECKING:
    from onnx import ModelProto

NAME, RUNTIME = "onnx", "onnxruntime"
_BLOCKS = (
    "mxfp4", "nvfp4", "mxfp8_e4m3", "mxfp8_e5m2", "mxfp6_e2m3", "mxfp6_e3m2", "fp8_e4m3_channel",
    "fp8_e5m2_channel", "int8_channel", "int4_channel", "int8_tensor", "int8_256",
    "block(element=int(4,coding=symmetric),scale=fp32,size=32)",
)  # fmt: skip


def is_one(path: Path) -> bool:
    """Return whether a file is an ONNX model by its name; such a file has no mark of its own."""
    return path.suffix.lower() == SUFFIX and path.is_file()


def read_file(path: Path) -> tuple[list[StoredTensor], Reading]:
    """List the initializers of a model: ordinary ones, with what says that they are weights, and narrow ones.

    Raises:
        DataError: the model is damaged.
        MissingDependencyError: onnx is not installed.
    """
    model = _loaded(path)
    found = narrow_weights(model)
    _, gone = without(model.proto.graph, found)
    axes = sums(model)
    left = {name: tensor for name, tensor in model.initializers.items() if name not in gone}
    ordinary: list[StoredTensor] = [replace(t, sums=axes.get(name)) for name, t in left.items()]
    if not ordinary and not found:
        raise DataError(f"{path} has no initializers; expected a model with at least one")
    last: dict[tuple[str, str], bytes] = {}
    narrow = tuple(_narrow(weight, path, last) for weight in found)
    return ordinary, Reading(narrow, frozenset(), tuple(_problems(found, model)))


def _loaded(path: Path) -> OnnxModel:
    package("onnx", NAME)
    return load_model(path)


def _problems(found: list[Found], model: OnnxModel) -> list[str]:
    names = [weight.name for weight in found]
    twice = sorted(name for name in names if names.count(name) > 1 or name in model.initializers)
    return [f"tensor {name!r:.200} is there twice" for name in dict.fromkeys(twice)]


def _narrow(weight: Found, path: Path, last: dict[tuple[str, str], bytes]) -> StoredNarrowTensor:
    parts: dict[str, StoredTensor] = {}
    for suffix, entry in weight.layout.parts.items():
        stored, order = weight.parts[suffix]
        if order.is_same:
            parts[suffix] = Initializer(
                stored.name, entry.shape, entry.dtype, stored.file, stored.start, held=stored.held
            )
        else:
            parts[suffix] = Reordered(
                stored.name, entry.shape, entry.dtype, stored.file, stored.start,
                origin=stored, order=order, of=weight.name, last=last,
            )  # fmt: skip
    return StoredNarrowTensor(weight.name, weight.layout, parts, path)


def read(folder: ModelFolder | None, tensors: Mapping[str, StoredTensor]) -> Reading | None:
    """A model is never in safetensors files; :func:`read_file` reads it."""
    return None


def _is_weight(tensor: StoredTensor) -> bool:
    is_weight = isinstance(tensor, Initializer) and tensor.sums is not None
    return is_weight and tensor.dtype in FLOATS and tensor.count > 0


def _write(request: Request, *, for_runtime: bool) -> Plan:
    """Plan a model.

    Raises:
        ArgumentError: the model cannot be brought to the opset that a format needs, a sum is not whole
            blocks, or a file of the source would be written over.
        MissingDependencyError: onnx is not installed, or does not know the types of a format.
    """
    model = _loaded(request.source)
    embed_others(model)
    proto, names = model.proto, Names(model.proto.graph)
    forms, views = dict[str, Form](), dict[str, StoredTensor]()
    last: dict[tuple[str, str], bytes] = {}
    for tensor in request.tensors:
        if tensor.name in request.becomes:
            assert isinstance(tensor, Initializer)
            format = request.becomes[tensor.name].format
            assert isinstance(format, Block)
            forms[tensor.name] = form(tensor, format, names, for_runtime=for_runtime)
            views[tensor.name] = lines(tensor, last)
    proto = with_opset(proto, max(made.opset for made in forms.values()))
    _put_forms(proto, forms)
    encodings = {name: _encoding(made) for name, made in forms.items()}
    entries = {
        t.name: encodings[t.name].entries if t.name in forms else {t.name: HeaderEntry(t.dtype, t.shape)}
        for t in request.tensors
    }
    return _plan(model, proto, encodings, entries, request.destination, views)


def _plan(
    model: OnnxModel,
    proto: ModelProto,
    encodings: Mapping[str, Encoding],
    entries: Mapping[str, Mapping[str, HeaderEntry]],
    to: Path,
    views: Mapping[str, StoredTensor],
) -> Plan:
    made, places = headers(proto, entries, to, external=is_external(model, entries))
    refuse_clashes(model, made)
    return Plan(encodings, views=views, headers=made, places=places)


def lines(weight: Initializer, last: dict[tuple[str, str], bytes] | None = None) -> StoredTensor:
    """Return a weight as a matrix whose lines are the sums.

    Args:
        weight: an initializer that :data:`LAYOUT` can cast.
        last: where the bytes of the last weight are kept; one for all weights of a model.
    """
    matrix, axis = summed(weight)
    order = Order(matrix, axis, width(weight.dtype))
    shape = weight.count // order.row, order.row
    if order.is_same:
        return replace(weight, shape=shape)
    return Reordered(
        weight.name, shape, weight.dtype, weight.file, weight.start,
        origin=weight, order=order, of=weight.name, last={} if last is None else last,
    )  # fmt: skip


def _put_forms(proto: ModelProto, forms: Mapping[str, Form]) -> None:
    """Replace weights by what makes them, before all other operators."""
    graph = proto.graph
    kept = [t for t in graph.initializer if t.name not in forms]
    parts = [described(p.name, p.dtype, p.shape) for made in forms.values() for p in made.parts.values()]
    constants = [constant for made in forms.values() for constant in made.constants]
    nodes = [node for made in forms.values() for node in made.nodes]
    others = list(graph.node)
    del graph.initializer[:], graph.node[:]
    graph.initializer.extend([*kept, *parts, *constants])
    graph.node.extend([*nodes, *others])


def _encoding(made: Form) -> Encoding:
    entries = {part.name: part.entry for part in made.parts.values()}

    def put(write: Write) -> Put:
        gathered = {suffix: bytearray() for suffix in made.parts}

        def part(suffix: str, at: int, octets: bytes) -> None:
            told, all_so_far = made.parts[suffix], gathered[suffix]
            if told.order.is_same:
                write(told.name, at, octets)
                return
            all_so_far[at : at + len(octets)] = octets  # a scale that pieces share comes with each of them
            if len(all_so_far) == told.order.nbytes:
                write(told.name, 0, told.order.to_onnx(all_so_far))

        return part

    return Encoding(made.becomes, entries, put)


def restored(source: Path, tensors: tuple[AnyStoredTensor, ...], to: Destination) -> Plan:
    """Plan a model with its narrow weights whole again.

    Raises:
        DataError: the model is damaged.
        ArgumentError: the destination is a file of the source.
    """
    model = _loaded(source)
    embed_others(model)
    proto = model.proto
    left, gone = without(proto.graph, narrow_weights(model))
    kept = [t for t in proto.graph.initializer if t.name not in gone]
    whole = [described(t.name, t.dtype, t.shape) for t in tensors if isinstance(t, StoredNarrowTensor)]
    del proto.graph.initializer[:], proto.graph.node[:]
    proto.graph.initializer.extend([*kept, *whole])
    proto.graph.node.extend(left)
    entries = {t.name: {t.name: HeaderEntry(t.dtype, t.shape)} for t in tensors}
    return _plan(model, proto, {}, entries, to.path, {})


def _refuse_replaceable(source: Path) -> None:
    """Check that a model without weights to cast has none that are merely inputs too."""
    model = _loaded(source)
    inputs = [v.name for v in model.proto.graph.input if len(_shape_of(model, v.name)) > 1]
    if inputs and not sums(model):
        raise ArgumentError(
            f"{source} has no weight to cast: {len(inputs)} of its initializers, as {inputs[0]!r:.200}, are"
            " inputs of the graph too, which its caller may replace; export it without them"
            " (keep_initializers_as_inputs=False in torch.onnx.export)"
        )


def _shape_of(model: OnnxModel, name: str) -> tuple[int, ...]:
    return model.initializers[name].shape if name in model.initializers else ()


def _layout(name: str, *, for_runtime: bool) -> Layout:
    def stored(format: Format) -> Format | None:
        return format if has_place(format, for_runtime=for_runtime) else None

    from fewbits.formats import CATALOGUE, parse

    names = tuple(
        n for n in _BLOCKS if stored(CATALOGUE[n].format if n in CATALOGUE else parse(n)) is not None
    )

    def write(request: Request) -> Plan:
        return _write(request, for_runtime=for_runtime)

    def check(source: Path) -> None:
        if not is_one(source):
            raise ArgumentError(
                f"layout={name!r} makes the weights of an .onnx model narrow, and {source} is none; export"
                " the model to ONNX first, and give that file"
            )
        _refuse_replaceable(source)

    return Layout(name, stored, names, _is_weight, write, read, SUFFIX, check)


LAYOUT = _layout(NAME, for_runtime=False)
RUNTIME_LAYOUT = _layout(RUNTIME, for_runtime=True)
