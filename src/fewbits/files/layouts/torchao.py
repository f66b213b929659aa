"""torchao: its safetensors files, with a tensor for each part and the class of each weight in the header.

This follows ``torchao.prototype.safetensors``, a prototype that may change; the package's own classes write
what the header and the config say.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from io import BufferedReader
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from fewbits.errors import ArgumentError, DataError, MissingDependencyError
from fewbits.files.byte_layout import TensorLayout
from fewbits.files.checkpoint import FLOATS, StoredTensor, metadata
from fewbits.files.encoding import Encoding, Plan, Put, Write
from fewbits.files.layouts.layout import (
    Layout,
    Reading,
    Request,
    folder_of,
    fused,
    is_linear,
    left_wide,
    needs_multiple,
    package,
)
from fewbits.files.model_folder import CONFIG, ModelFolder
from fewbits.files.narrow_tensor import StoredNarrowTensor, TranslatedPart
from fewbits.files.places import places_in
from fewbits.files.safetensors_header import HeaderEntry, width
from fewbits.formats import CATALOGUE, Block, Fixed, Format
from fewbits.versions import release

if TYPE_CHECKING:
    import torch
    from torchao.core.config import AOBaseConfig

NAME = "torchao"
_NAMES = "tensor_names"  # in the header: what it describes
_ENDS = {"codes": "qdata", "scales": "scale", "outer": "per_tensor_scale"}
_ROWS, _COLUMNS = 128, 4  # of a tile of scales in the order of tensor cores


class _Class(NamedTuple):
    """How a format is stored."""

    name: str
    codes: str  # dtypes, in the spelling of safetensors
    scales: str


_CLASSES = {
    "nvfp4": _Class("NVFP4Tensor", "U8", "F8_E4M3"),
    "mxfp4": _Class("MXTensor", "U8", "F8_E8M0"),
    "mxfp8_e4m3": _Class("MXTensor", "F8_E4M3", "F8_E8M0"),
    "mxfp8_e5m2": _Class("MXTensor", "F8_E5M2", "F8_E8M0"),
    "int8_channel": _Class("Int8Tensor", "I8", "F32"),
    "fp8_e4m3_channel": _Class("Float8Tensor", "F8_E4M3", "F32"),
}
_BY_FORMAT = {str(CATALOGUE[name].format): name for name in _CLASSES}


def _stored(format: Format) -> Format | None:
    return format if str(format) in _BY_FORMAT else None


def _entries(becomes: TensorLayout, of: _Class) -> dict[str, HeaderEntry]:
    """Return the entry of each part; the bytes are those of ours."""
    entries = {}
    for suffix, own in becomes.parts.items():
        dtype = {"codes": of.codes, "scales": of.scales, "outer": "F32"}[suffix]
        *rows, octets = own.shape
        shape = () if suffix == "outer" else (*rows, octets * 8 // width(dtype))
        entries[suffix] = HeaderEntry(dtype, shape)
    return entries


def _part_name(name: str, suffix: str) -> str:
    module, _, leaf = name.rpartition(".")
    return f"{module}._{leaf}_{_ENDS[suffix]}"


def write(request: Request) -> Plan:
    """Plan a folder whose headers describe each tensor.

    Raises:
        ArgumentError: the source is no folder with a config, a row is not whole blocks, a tensor has a name
            without a dot, which the package does not read, or transformers gives it another or merges it.
        MissingDependencyError: torchao or transformers is not installed.
    """
    for needed in (NAME, "transformers"):
        package(needed, NAME)
    _check_version()
    folder = folder_of(NAME, request.source)
    needs_multiple(NAME, request.becomes)
    for tensor in request.tensors:
        if "." not in tensor.name:
            raise ArgumentError(
                f"{tensor.name!r:.200} has no dot in its name, and {NAME} reads names of modules alone;"
                " rename it, or leave it out"
            )
    for name, place in places_in(folder, request.becomes).items():
        if place.name != name:  # the package finds the class of a weight by its name in the model
            is_part = "a part of " if place.pattern else ""
            raise ArgumentError(
                f"{name!r:.200} is {is_part}{place.name!r:.200} in transformers, and layout={NAME!r} has"
                " weights under their own names alone; name it in `exclude`"
            )
    with_outer = [t for t in request.tensors if t.name in request.becomes]
    with_outer = [t for t in with_outer if request.becomes[t.name].format.groups.outer is not None]
    described = {t.name: json.dumps({"_type": "Tensor"}) for t in request.tensors}
    described |= {name: _description(becomes) for name, becomes in request.becomes.items()}
    return Plan(
        {name: _encoding(name, becomes) for name, becomes in request.becomes.items()},
        # Every file describes all tensors of the model: transformers keeps the list of one file.
        metadata={"format": "pt", **described, _NAMES: json.dumps(list(described))},
        texts={CONFIG: _config(folder, request)},
        copies=folder.companions(),
        shared=fused(with_outer) if request.fuse else {},
    )


def _check_version() -> None:
    """Check that the installed package has the classes of all formats.

    Raises:
        MissingDependencyError: it is older.
    """
    try:
        from torchao.prototype.safetensors.safetensors_utils import ALLOWED_TENSORS_SUBCLASSES
    except ImportError:
        known = []
    else:
        known = ALLOWED_TENSORS_SUBCLASSES
    if not {of.name for of in _CLASSES.values()}.issubset(known):
        raise MissingDependencyError(
            f"layout={NAME!r} needs {NAME} 0.18 or a later one, and {release(NAME)} is installed;"
            " install it with `pip install --upgrade 'fewbits[export]'`"
        )


def _encoding(name: str, becomes: TensorLayout) -> Encoding:
    entries = _entries(becomes, _CLASSES[_BY_FORMAT[str(becomes.format)]])

    def put(write: Write) -> Put:
        return lambda suffix, at, octets: write(_part_name(name, suffix), at, octets)

    return Encoding(becomes, {_part_name(name, suffix): entry for suffix, entry in entries.items()}, put)


def _description(becomes: TensorLayout) -> str:
    """Return what the package says of a weight of this kind, from one without values."""
    import torch
    from torchao.prototype.mx_formats.mx_tensor import MXTensor
    from torchao.prototype.mx_formats.nvfp4_tensor import NVFP4Tensor
    from torchao.prototype.safetensors.safetensors_utils import TensorSubclassAttributeJSONEncoder
    from torchao.quantization import Float8Tensor, Int8Tensor
    from torchao.quantization.quantize_.common import KernelPreference

    name = _BY_FORMAT[str(becomes.format)]
    of = _CLASSES[name]
    parts = {suffix: _without_values(entry) for suffix, entry in _entries(becomes, of).items()}
    dtype: torch.dtype = getattr(torch, FLOATS[becomes.dtype])
    codes, scales, row = parts["codes"], parts["scales"], [1, becomes.shape[1]]
    made: torch.Tensor
    if of.name == "NVFP4Tensor":
        made = NVFP4Tensor(codes, scales, 16, dtype, parts["outer"], is_swizzled_scales=False)
    elif of.name == "MXTensor":
        elements = torch.float4_e2m1fn_x2 if name == "mxfp4" else codes.dtype
        made = MXTensor(codes, scales, elements, 32, dtype, KernelPreference.EMULATED, None, False)
    elif of.name == "Int8Tensor":
        made = Int8Tensor(codes, scales, row, dtype)
    else:
        made = Float8Tensor(codes, scales, row, dtype=dtype)
    return json.dumps(made, cls=TensorSubclassAttributeJSONEncoder)


def _without_values(entry: HeaderEntry) -> torch.Tensor:
    import torch

    names = FLOATS | {"U8": "uint8", "I8": "int8", "F8_E8M0": "float8_e8m0fnu"}
    return torch.empty(entry.shape, dtype=getattr(torch, names[entry.dtype]), device="meta")


def _config(folder: ModelFolder, request: Request) -> str:
    from torchao.quantization import FqnToConfig
    from transformers import TorchAoConfig

    kinds = {name: _BY_FORMAT[str(becomes.format)] for name, becomes in request.becomes.items()}
    if len(set(kinds.values())) == 1:
        told = _scheme(next(iter(kinds.values())))
    else:
        told = FqnToConfig({name.removesuffix(".weight"): _scheme(kind) for name, kind in kinds.items()})
    config = TorchAoConfig(told, modules_to_not_convert=left_wide(request))
    return folder.text(quantization_config=config.to_dict())


def _scheme(kind: str) -> AOBaseConfig:
    """Return the package's name for a format of weights."""
    import torch
    from torchao.prototype.mx_formats import MXDynamicActivationMXWeightConfig
    from torchao.prototype.mx_formats.inference_workflow import NVFP4WeightOnlyConfig
    from torchao.quantization import Float8WeightOnlyConfig, Int8WeightOnlyConfig

    if kind == "nvfp4":
        return NVFP4WeightOnlyConfig()
    if kind == "int8_channel":
        return Int8WeightOnlyConfig()
    if kind == "fp8_e4m3_channel":
        return Float8WeightOnlyConfig()
    of = {"mxfp4": torch.float4_e2m1fn_x2, "mxfp8_e4m3": torch.float8_e4m3fn, "mxfp8_e5m2": torch.float8_e5m2}
    return MXDynamicActivationMXWeightConfig(activation_dtype=of[kind], weight_dtype=of[kind])


def read(folder: ModelFolder | None, tensors: Mapping[str, StoredTensor]) -> Reading | None:
    """Find the weights that the headers describe; a config is not needed."""
    if not any(name.endswith("_" + _ENDS["codes"]) for name in tensors):
        return None
    told: dict[str, dict[str, Any]] = {}
    for file in dict.fromkeys(tensor.file for tensor in tensors.values()):
        told |= _told(file)
    if not told:
        return None
    narrow, claimed, problems = [], set[str](), []
    for name, description in told.items():
        prefix = _part_name(name, "codes").removesuffix(_ENDS["codes"])
        parts = {own: tensor for own, tensor in tensors.items() if own.startswith(prefix)}
        if description.get("_type") == "Tensor" or not parts:  # others may lie in files that are not read
            continue
        claimed |= parts.keys()
        try:
            narrow.append(_narrow(name, description, {n.removeprefix(prefix): t for n, t in parts.items()}))
        except DataError as error:
            problems.append(f"tensor {name!r:.200}: {error}")
    return Reading(tuple(narrow), frozenset(claimed), tuple(problems))


def _told(file: Path) -> dict[str, dict[str, Any]]:
    """Return what a header says of each tensor; {} if it is no header of torchao."""
    texts = metadata(file)
    try:
        names = json.loads(texts.get(_NAMES, "[]"))
        told = {name: json.loads(texts[name]) for name in names}
    except (ValueError, KeyError, TypeError, RecursionError):
        return {}
    return told if all(isinstance(one, dict) and "." in name for name, one in told.items()) else {}


def _narrow(name: str, told: Mapping[str, Any], there: Mapping[str, StoredTensor]) -> StoredNarrowTensor:
    """Return the narrow tensor that a header describes.

    Raises:
        DataError: it is of a class or cut that is not read, or its tensors do not fit each other.
    """
    about = told.get("_data") if isinstance(told.get("_data"), dict) else {}
    assert isinstance(about, dict)
    codes, scales = there.get("qdata"), there.get("scale")
    if codes is None or scales is None or len(codes.shape) != 2:
        raise DataError("it has no two-axis qdata with a scale; fetch it again")
    given = told.get("_type"), codes.dtype, scales.dtype
    format = next((CATALOGUE[n].format for n, of in _CLASSES.items() if tuple(of) == given), None)
    dtype = _dtype(about.get("orig_dtype", about.get("dtype")))
    if format is None or dtype is None:
        raise DataError(
            f"it is a {given[0]!r:.60} of {given[1]} with scales in {given[2]}, which is not read"
        )
    of = _Class(*(str(text) for text in given))
    if of.name == "Int8Tensor":  # of theirs, -128 may be a value
        format = Block(Fixed(8), *(getattr(format, field) for field in ("scale", "size")))
    if of.name == "NVFP4Tensor" and "per_tensor_scale" not in there:
        format = Block(*(getattr(format, field) for field in ("element", "scale", "size")))
    _refuse_more(there)
    rows, items = codes.shape[0], codes.shape[1] * (2 if of.codes == "U8" else 1)
    becomes = TensorLayout(format, (rows, items), 1, dtype)
    parts: dict[str, StoredTensor] = {}
    for suffix, expected in _entries(becomes, of).items():
        stored, own = there.get(_ENDS[suffix]), becomes.parts[suffix]
        swizzled = suffix == "scales" and about.get("is_swizzled_scales") is True
        shapes = {expected.shape} if suffix != "outer" else {(), (1,)}
        if stored is None or stored.dtype != expected.dtype or not (swizzled or stored.shape in shapes):
            found = "missing" if stored is None else f"{stored.dtype} {list(stored.shape)!s:.100}"
            raise DataError(
                f"its {_ENDS[suffix]!r} is {found}; {format.name:.100} of {[rows, items]!s:.100} takes"
                f" {expected.dtype} {list(expected.shape)!s:.100}"
            )
        if swizzled:
            parts[suffix] = _unswizzled(stored, own)
        else:
            parts[suffix] = TranslatedPart(stored.name, own.shape, own.dtype, stored.file, stored.start)
    return StoredNarrowTensor(name, becomes, parts, codes.file)


def _refuse_more(there: Mapping[str, StoredTensor]) -> None:
    """Check that there is nothing but codes, scales, and zero points that are zero."""
    for end, tensor in there.items():
        if end in _ENDS.values():
            continue
        with tensor.file.open("rb") as file:
            is_zero = end == "zero_point" and not any(tensor.read(file, 0, tensor.stored_bytes))
        if not is_zero:
            raise DataError(f"it has {end!r:.60}, which is not read; expected symmetric weights only")


def _dtype(told: object) -> str | None:
    """Return the dtype of a weight, in the spelling of safetensors."""
    name = told.get("_data") if isinstance(told, dict) else None
    return next((own for own, torchs in FLOATS.items() if torchs == name), None)


@dataclass(frozen=True)
class _Unswizzled(StoredTensor):
    """Scales that lie in the order of tensor cores, read row by row."""

    origin: StoredTensor | None = None

    def read(self, file: BufferedReader, at: int, size: int) -> bytearray:
        """Return ``size`` bytes from byte ``at`` on."""
        assert self.origin is not None
        rows, columns = self.shape
        tiles = -(-rows // _ROWS), -(-columns // _COLUMNS)
        octets = np.frombuffer(self.origin.read(file, 0, self.origin.stored_bytes), np.uint8)
        # In a tile four groups of 32 rows lie side by side, 16 bytes of each of 32 lines.
        cut = octets.reshape(*tiles, 32, 4, _COLUMNS).transpose(0, 3, 2, 1, 4)
        whole = cut.reshape(tiles[0] * _ROWS, tiles[1] * _COLUMNS)[:rows, :columns]
        return bytearray(np.ascontiguousarray(whole).reshape(-1)[at : at + size].tobytes())


def _unswizzled(stored: StoredTensor, own: HeaderEntry) -> StoredTensor:
    """Return scales in the order of rows.

    Raises:
        DataError: they are not whole tiles.
    """
    rows, columns = own.shape
    expected = -(-rows // _ROWS) * _ROWS * -(-columns // _COLUMNS) * _COLUMNS
    if stored.stored_bytes != expected:
        raise DataError(
            f"its 'scale' has {stored.stored_bytes} bytes, and tiles of {_ROWS} by {_COLUMNS} of"
            f" {list(own.shape)!s:.100} have {expected}; fetch it again"
        )
    return _Unswizzled(stored.name, own.shape, own.dtype, stored.file, stored.start, origin=stored)


LAYOUT = Layout(NAME, _stored, tuple(_CLASSES), is_linear, write, read)
