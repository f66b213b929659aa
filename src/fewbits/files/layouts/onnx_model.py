"""The initializers of an ONNX model: where the numbers of each lie, in its file or in one beside it.

The package reads and writes the model. Numbers are read and written at their offsets, so that those of a file
beside the model are never all in memory.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from io import BufferedReader
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from fewbits.errors import ArgumentError, DataError
from fewbits.files.checkpoint import StoredTensor
from fewbits.files.layouts.onnx_order import stream
from fewbits.files.safetensors_header import Header, HeaderEntry, width

if TYPE_CHECKING:
    from onnx import FunctionProto, ModelProto, NodeProto, SparseTensorProto, TensorProto, TrainingInfoProto

SUFFIX = ".onnx"
SMALL = 1024  # bytes; smaller tensors stay in the model, whose shapes may depend on them
MOST_EMBEDDED = 1 << 30  # bytes of tensors in the model itself; a protobuf message has at most 2 GiB
_ALIGNMENT = 64
_FREE_INITIALIZERS = 4  # the first version of the format whose initializers need not be inputs too
_GRAPH, _INITIALIZER, _RAW_DATA = 7, 5, 9  # numbers of the fields in onnx.proto
_MOST_AXES, _LARGEST_COUNT = 64, 2**63 - 1

# ONNX's names of types, and those of safetensors; a type without one stays in the model and is not listed.
DTYPES = {
    "FLOAT": "F32", "DOUBLE": "F64", "FLOAT16": "F16", "BFLOAT16": "BF16", "FLOAT8E4M3FN": "F8_E4M3",
    "FLOAT8E5M2": "F8_E5M2", "FLOAT8E4M3FNUZ": "F8_E4M3FNUZ", "FLOAT8E5M2FNUZ": "F8_E5M2FNUZ",
    "FLOAT8E8M0": "F8_E8M0", "FLOAT6E2M3": "F6_E2M3", "FLOAT6E3M2": "F6_E3M2", "FLOAT4E2M1": "F4",
    "INT64": "I64", "INT32": "I32", "INT16": "I16", "INT8": "I8", "INT4": "I4", "INT2": "I2", "BOOL": "BOOL",
    "UINT64": "U64", "UINT32": "U32", "UINT16": "U16", "UINT8": "U8", "UINT4": "U4", "UINT2": "U2",
    "COMPLEX64": "C64", "COMPLEX128": "C128",
}  # fmt: skip


@dataclass(frozen=True)
class Initializer(StoredTensor):
    """An initializer of the main graph."""

    sums: int | None = None  # of a weight, the axis along which products are added; None: it is no weight
    held: bytes | None = field(default=None, compare=False)  # numbers that the model holds one by one

    def read(self, file: BufferedReader, at: int, size: int) -> bytearray:
        """Return ``size`` bytes from byte ``at`` on."""
        if self.held is None:
            return super().read(file, at, size)
        return bytearray(self.held[at : at + size])


@dataclass(frozen=True)
class OnnxModel:
    """A model without the numbers of its large initializers."""

    path: Path
    proto: ModelProto
    initializers: Mapping[str, Initializer]
    others: tuple[tuple[TensorProto, Initializer], ...] = ()  # beside the model, and no initializers of it

    @property
    def is_external(self) -> bool:
        """Whether numbers lie in files beside the model."""
        return any(tensor.file != self.path for tensor in self.initializers.values())


def load_model(path: Path) -> OnnxModel:
    """Read a model; numbers in files beside it are checked to be there, and not read.

    Raises:
        DataError: it is damaged, or names a file outside its own folder.
    """
    import onnx

    octets = path.read_bytes()
    try:
        proto = onnx.load_model_from_string(octets)
        starts = list(_raw_starts(memoryview(octets)))
    except Exception as error:  # of protobuf, whose errors have no common class in all its versions
        raise DataError(
            f"{path} cannot be read as ONNX ({type(error).__name__}: {error!s:.200}); fetch or write it again"
        ) from None
    if not proto.HasField("graph") or len(starts) != len(proto.graph.initializer):
        raise DataError(f"{path} cannot be read as ONNX: it has no graph; fetch or write it again")
    texts = [t.name for t in proto.graph.initializer]
    texts += [name for node in proto.graph.node for name in (*node.input, *node.output)]
    texts += [entry.value for t in proto.graph.initializer for entry in t.external_data]
    if not all(isinstance(text, str) for text in texts):  # else protobuf gives its bytes
        raise DataError(f"{path} has a name that is no text in UTF-8; fetch or write it again")
    if proto.ir_version < _FREE_INITIALIZERS:
        _drop_inputs(proto)
    initializers: dict[str, Initializer] = {}
    for tensor, start in zip(proto.graph.initializer, starts, strict=True):
        if tensor.name in initializers:
            raise DataError(f"{path} has the initializer {tensor.name!r:.200} twice; fetch or write it again")
        dtype = _dtype(tensor)
        if dtype is None:
            continue
        initializers[tensor.name] = _initializer(path, tensor, dtype, start)
        if tensor.ByteSize() > SMALL:
            tensor.ClearField("raw_data")
    return OnnxModel(path, proto, initializers, tuple(_others(path, proto, initializers)))


def _drop_inputs(proto: ModelProto) -> None:
    """Make constants of initializers that had to be inputs too, and could not say whether they are."""
    held = {tensor.name for tensor in proto.graph.initializer}
    left = [value for value in proto.graph.input if value.name not in held]
    del proto.graph.input[:]
    proto.graph.input.extend(left)
    proto.ir_version = _FREE_INITIALIZERS


def _others(
    path: Path, proto: ModelProto, initializers: Mapping[str, Initializer]
) -> Iterator[tuple[TensorProto, Initializer]]:
    """Yield the tensors beside the model that are of subgraphs, functions, Constant nodes or sparse."""
    from onnx import TensorProto

    graph = proto.graph
    found = [t for t in graph.initializer if t.name not in initializers]
    for holder in (*graph.node, *graph.sparse_initializer, *proto.functions, *proto.training_info):
        found += _tensors(holder)
    for tensor in found:
        if tensor.data_location != TensorProto.EXTERNAL:
            continue
        dtype = _dtype(tensor)
        if dtype is None:
            raise DataError(
                f"{path}: {tensor.name!r:.200} lies beside the model in the unknown type {tensor.data_type}"
            )
        yield tensor, _initializer(path, tensor, dtype, None)


def _tensors(
    message: NodeProto | SparseTensorProto | FunctionProto | TrainingInfoProto,
) -> Iterator[TensorProto]:
    """Yield all tensors of a message, however deep."""
    from onnx import TensorProto

    for told, value in message.ListFields():
        if told.message_type is None:
            continue
        for inner in [value] if hasattr(value, "ListFields") else value:
            if isinstance(inner, TensorProto):
                yield inner
            else:
                yield from _tensors(inner)


def embed_others(model: OnnxModel) -> None:
    """Read into the model what lies beside it and is no initializer of its main graph.

    Raises:
        ArgumentError: that is more than a model can hold.
    """
    from onnx import TensorProto

    total = sum(found.stored_bytes for _, found in model.others)
    if total > MOST_EMBEDDED:
        name = max(model.others, key=lambda pair: pair[1].stored_bytes)[1].name
        raise ArgumentError(
            f"{model.path} has {total} bytes beside it that are no initializers of its main graph, as"
            f" {name!r:.200}; at most {MOST_EMBEDDED} can be written: export the model without subgraphs,"
            " functions and Constant nodes that large"
        )
    for tensor, found in model.others:
        with found.file.open("rb") as file:
            tensor.raw_data = bytes(found.read(file, 0, found.stored_bytes))
        tensor.ClearField("external_data")
        tensor.data_location = TensorProto.DEFAULT


def _dtype(tensor: TensorProto) -> str | None:
    from onnx import TensorProto

    names = {number: name for name, number in TensorProto.DataType.items()}
    return DTYPES.get(names.get(tensor.data_type, ""))


def _initializer(path: Path, tensor: TensorProto, dtype: str, start: int | None) -> Initializer:
    from onnx import TensorProto, numpy_helper

    name, shape = tensor.name, tuple(tensor.dims)
    is_too_large = len(shape) > _MOST_AXES or prod(max(n, 1) for n in shape) > _LARGEST_COUNT
    if is_too_large or any(n < 0 for n in shape):
        raise DataError(f"{path}: {name!r:.200} has the shape {list(shape)!s:.200}; expected counts")
    made = Initializer(name, shape, dtype, path, -1 if start is None else start)
    if tensor.data_location == TensorProto.EXTERNAL:
        return _beside(path, tensor, made)
    if start is None and made.count:
        try:
            made = Initializer(name, shape, dtype, path, held=_octets(numpy_helper.to_array(tensor), dtype))
        except Exception as error:  # as above: what it raises depends on the type
            raise DataError(
                f"{path}: {name!r:.200} has not the numbers of its shape ({error!s:.200})"
            ) from None
    there = len(tensor.raw_data) if made.held is None else len(made.held)
    if there != made.stored_bytes:
        raise DataError(
            f"{path}: {name!r:.200} is {dtype} {list(shape)!s:.200} in {there} bytes; expected"
            f" {made.stored_bytes}: fetch or write it again"
        )
    return made


def _octets(values: NDArray[Any], dtype: str) -> bytes:
    """Return numbers that are no raw bytes as they would be there."""
    array = np.ascontiguousarray(values)
    bits = width(dtype)
    if bits < 8:
        return stream(array.reshape(-1).view(np.uint8) & np.uint8((1 << bits) - 1), bits).tobytes()
    return array.tobytes()


def _beside(path: Path, tensor: TensorProto, made: Initializer) -> Initializer:
    """Return an initializer whose numbers lie in another file, which has to be in the folder of the model."""
    told = {entry.key: entry.value for entry in tensor.external_data}
    location = Path(told.get("location", ""))
    name = f"{path}: {made.name!r:.200}"
    file = path.parent / location
    # A model is untrusted input: it may only name files in its own folder, or below.
    if not told.get("location") or location.is_absolute() or ".." in location.parts:
        raise DataError(f"{name} lies in {told.get('location')!r:.200}; expected a file in its folder")
    if not file.is_file():
        raise DataError(f"{name} lies in {file.name!r:.200}, which is missing; fetch the whole model again")
    try:
        start, length = int(told.get("offset", 0)), int(told.get("length", made.stored_bytes))
    except ValueError:
        raise DataError(f"{name} has no counts for its offset and length; fetch it again") from None
    if length != made.stored_bytes or not 0 <= start <= file.stat().st_size - length:
        raise DataError(
            f"{name} is {made.dtype} {list(made.shape)!s:.200} in {length} bytes from {start} on of"
            f" {file.name!r:.200}, which has {file.stat().st_size}; expected {made.stored_bytes} bytes:"
            " fetch or write it again"
        )
    return Initializer(made.name, made.shape, made.dtype, file, start)


def _raw_starts(octets: memoryview) -> Iterator[int | None]:
    """Yield, for each initializer of the main graph, where its raw bytes begin, or None if it has none."""
    for graph, end in _fields(octets, 0, len(octets), _GRAPH):
        for tensor, tensor_end in _fields(octets, graph, end, _INITIALIZER):
            yield next((start for start, _ in _fields(octets, tensor, tensor_end, _RAW_DATA)), None)


def _fields(octets: memoryview, at: int, end: int, wanted: int) -> Iterator[tuple[int, int]]:
    """Yield where each field of a number begins and ends in a message of protobuf's encoding."""
    while at < end:
        key, at = _varint(octets, at)
        kind = key & 7
        if kind == 0:
            _, at = _varint(octets, at)
            continue
        if kind == 2:
            length, at = _varint(octets, at)
        else:
            length = {1: 8, 5: 4}[kind]
        if length > end - at:
            raise ValueError("a field ends behind its message")
        if kind == 2 and key >> 3 == wanted:
            yield at, at + length
        at += length


def _varint(octets: memoryview, at: int) -> tuple[int, int]:
    value = shift = 0
    while shift < 70:
        value |= (octets[at] & 0x7F) << shift
        if octets[at] < 0x80:
            return value, at + 1
        at, shift = at + 1, shift + 7
    raise ValueError("a number has more than 64 bits")


def described(name: str, dtype: str, shape: tuple[int, ...]) -> TensorProto:
    """Return an initializer without numbers; ``dtype`` is in the spelling of safetensors."""
    from onnx import TensorProto

    types = {own: theirs for theirs, own in DTYPES.items()}
    return TensorProto(name=name, data_type=TensorProto.DataType.Value(types[dtype]), dims=shape)


def headers(
    proto: ModelProto, entries: Mapping[str, Mapping[str, HeaderEntry]], to: Path, *, external: bool
) -> tuple[dict[Path, Header], dict[str, Path]]:
    """Return the files of a model that is written, and in which of them each tensor lies.

    Args:
        proto: the model; its initializers get room for their numbers, or the place of those.
        entries: what is stored, by the name of the initializer, by the name of the tensor of the job.
        to: the file of the model.
        external: whether numbers go to a file beside it.
    """
    from onnx import TensorProto

    beside = to.with_name(to.name + ".data")
    sizes = {name: sum(e.nbytes for e in of.values()) for name, of in entries.items()}
    places = {name: beside if external and size >= SMALL else to for name, size in sizes.items()}
    files = {entry: places[name] for name, of in entries.items() for entry in of}
    room = {entry: e.nbytes for of in entries.values() for entry, e in of.items()}
    starts, at = dict[str, int](), 0
    for tensor in proto.graph.initializer:
        if tensor.name not in files:
            continue
        clean = described_like(tensor)
        if files[tensor.name] == beside:
            at += -at % _ALIGNMENT
            starts[tensor.name] = at
            clean.data_location = TensorProto.EXTERNAL
            told = {"location": beside.name, "offset": at, "length": room[tensor.name]}
            for key, value in told.items():
                clean.external_data.add(key=key, value=str(value))
            at += room[tensor.name]
        else:
            clean.raw_data = bytes(room[tensor.name])
        tensor.CopyFrom(clean)
    octets = proto.SerializeToString(deterministic=True)
    own = zip(proto.graph.initializer, _raw_starts(memoryview(octets)), strict=True)
    inside = {t.name: start for t, start in own if files.get(t.name) == to and start is not None}
    made = {to: Header(octets, inside, len(octets))}
    if starts:
        made[beside] = Header(b"", starts, at)
    return made, places


def described_like(tensor: TensorProto) -> TensorProto:
    """Return an initializer without its numbers."""
    from onnx import TensorProto

    return TensorProto(
        name=tensor.name, data_type=tensor.data_type, dims=tensor.dims, doc_string=tensor.doc_string
    )


def is_external(model: OnnxModel, entries: Mapping[str, Mapping[str, HeaderEntry]]) -> bool:
    """Return whether numbers go to a file beside the model: as they came, or because they are many."""
    total = sum(entry.nbytes for of in entries.values() for entry in of.values())
    return model.is_external or total > MOST_EMBEDDED


def refuse_clashes(model: OnnxModel, made: Mapping[Path, Header]) -> None:
    """Check that no file that is written is one that is read.

    Raises:
        ArgumentError: one is, or lies there and is of another model.
    """
    read = [*model.initializers.values(), *(found for _, found in model.others)]
    sources = {model.path.resolve(), *(t.file.resolve() for t in read)}
    model_file, *others = made
    for file in made:
        if file.resolve() in sources or any(file.exists() and file.samefile(s) for s in sources):
            raise ArgumentError(f"{file} is read for the source; give another name to write to")
    for file in others:
        if file.exists() and not model_file.exists():
            raise ArgumentError(
                f"{file} is there, and not of this model; give another name, or remove that file"
            )
