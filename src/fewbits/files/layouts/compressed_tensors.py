"""compressed-tensors: what vLLM, llm-compressor and transformers load; each Linear layer has a scheme.

The names of tensors are those of the package's compressors; its classes write the ``quantization_config``.
"""

from __future__ import annotations

import re
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from fewbits.errors import DataError
from fewbits.files.byte_layout import TensorLayout
from fewbits.files.checkpoint import StoredTensor
from fewbits.files.encoding import Encoding, Plan, Put, Write
from fewbits.files.layouts.layout import (
    BF16,
    Layout,
    Reading,
    Request,
    folder_of,
    fused,
    is_linear,
    left_wide,
    needs_multiple,
    package,
    with_scale,
)
from fewbits.files.model_folder import CONFIG, ModelFolder
from fewbits.files.narrow_tensor import StoredNarrowTensor, TranslatedPart
from fewbits.files.places import places_in
from fewbits.files.safetensors_header import HeaderEntry, width
from fewbits.formats import CATALOGUE, Block, Fixed, Format

if TYPE_CHECKING:
    from compressed_tensors.quantization import QuantizationScheme

NAME = "compressed-tensors"
_INT4, _ALL_INT4 = Fixed(4, 0, "symmetric"), Fixed(4)  # -8 is never written, and is read


class _Part(NamedTuple):
    name: str  # after the module's
    dtype: str
    bits: int  # of its numbers, which the dtype may hold several of


class _Scheme(NamedTuple):
    """How one format is stored."""

    compression: str  # the value of ``format``
    parts: Mapping[str, _Part]  # by the suffixes of docs/layout.md
    preset: str = ""  # of the package; "": one scale for a channel, or for a group of integers


_MX_SCALE = _Part("weight_scale", "U8", 8)  # as F8_E8M0 it would load, and mean something else
_BF16_SCALE = _Part("weight_scale", "BF16", 16)
_PACKED_4 = _Part("weight_packed", "U8", 8)
_E4M3_WEIGHT = _Part("weight", "F8_E4M3", 8)

_SCHEMES: dict[str, _Scheme] = {
    "mxfp4": _Scheme("mxfp4-pack-quantized", {"codes": _PACKED_4, "scales": _MX_SCALE}, "MXFP4A16"),
    "mxfp6_e2m3": _Scheme("mxfp6-pack-quantized", {"codes": _PACKED_4, "scales": _MX_SCALE}, "MXFP6A16"),
    "mxfp8_e4m3": _Scheme("mxfp8-quantized", {"codes": _E4M3_WEIGHT, "scales": _MX_SCALE}, "MXFP8A16"),
    "nvfp4": _Scheme(
        "nvfp4-pack-quantized",
        {
            "codes": _PACKED_4,
            "scales": _Part("weight_scale", "F8_E4M3", 8),
            "outer": _Part("weight_global_scale", "F32", 32),
        },
        "NVFP4A16",
    ),
    "fp8_e4m3_channel": _Scheme("float-quantized", {"codes": _E4M3_WEIGHT, "scales": _BF16_SCALE}),
    "int8_channel": _Scheme("int-quantized", {"codes": _Part("weight", "I8", 8), "scales": _BF16_SCALE}),
}
_INT4_SCHEME = _Scheme("pack-quantized", {"codes": _Part("weight_packed", "I32", 32), "scales": _BF16_SCALE})
_SHAPE = "weight_shape"  # of pack-quantized, two I64
_BY_STORED = {str(with_scale(CATALOGUE[name].format, BF16)): scheme for name, scheme in _SCHEMES.items()}
_FORMATS = (*_SCHEMES, "int4_channel", "block(element=int(4,coding=symmetric),scale=bf16,size=128)")


def _stored(format: Format) -> Format | None:
    stored = with_scale(format, BF16)
    return stored if _scheme_of(stored) is not None else None


def _scheme_of(format: Format) -> _Scheme | None:
    if isinstance(format, Block) and format.element in (_INT4, _ALL_INT4):
        fits = format.scale == BF16 and (format.size == "channel" or isinstance(format.size, int))
        return _INT4_SCHEME if fits else None
    return _BY_STORED.get(str(format))


def _scheme(format: Format) -> _Scheme:
    scheme = _scheme_of(format)
    assert scheme is not None  # the layout accepted the format
    return scheme


def write(request: Request) -> Plan:
    """Plan a folder: the tensors of each scheme, and the config that names the schemes.

    Raises:
        ArgumentError: the source is no folder with a config, or a row is not whole blocks.
        MissingDependencyError: compressed-tensors is not installed.
    """
    package(NAME, NAME)
    folder = folder_of(NAME, request.source)
    needs_multiple(NAME, request.becomes)
    integers = {n: b for n, b in request.becomes.items() if _scheme(b.format) is _INT4_SCHEME}
    needs_multiple(NAME, integers, 8)  # of them fill an I32
    with_outer = [t for t in request.tensors if t.name in request.becomes]
    with_outer = [t for t in with_outer if request.becomes[t.name].format.groups.outer is not None]
    return Plan(
        encodings={name: _encoding(name, becomes) for name, becomes in request.becomes.items()},
        metadata={"format": "pt"},
        texts={CONFIG: _config(folder, request)},
        copies=folder.companions(),
        shared=fused(with_outer) if request.fuse else {},
    )


def _encoding(name: str, becomes: TensorLayout) -> Encoding:
    scheme, module = _scheme(becomes.format), name.removesuffix("weight")
    entries = {module + part.name: _entry(part, becomes.parts[s]) for s, part in scheme.parts.items()}
    if scheme is _INT4_SCHEME:
        entries[module + _SHAPE] = HeaderEntry("I64", (2,))

    def put(write: Write) -> Put:
        if scheme is _INT4_SCHEME:
            write(module + _SHAPE, 0, np.array(becomes.shape, "<i8").tobytes())

        def part(suffix: str, at: int, octets: bytes) -> None:
            translate = _translation(scheme, suffix)
            write(module + scheme.parts[suffix].name, at, bytes(translate(bytearray(octets))))

        return part

    return Encoding(becomes, entries, put)


def _entry(part: _Part, own: HeaderEntry) -> HeaderEntry:
    """Return the entry of a part whose bytes are those of ours."""
    if own.dtype == "F32":
        return HeaderEntry("F32", (1,))  # of shape () it fails to load
    *rows, octets = own.shape
    return HeaderEntry(part.dtype, (*rows, octets * 8 // part.bits))


def _translation(scheme: _Scheme, suffix: str) -> Callable[[bytearray], bytearray]:
    if suffix == "outer":
        return _reciprocal
    return _offset_binary if scheme is _INT4_SCHEME and suffix == "codes" else lambda octets: octets


def _reciprocal(octets: bytearray) -> bytearray:
    """Return 1 / x: the global scale divides.

    Raises:
        DataError: the result is no finite number.
    """
    scales = np.frombuffer(octets, "<f4")
    with np.errstate(divide="ignore", over="ignore"):
        inverse = np.float32(1) / scales
    if not np.isfinite(inverse).all():
        raise DataError(
            f"an outer scale of {scales[0]:g} has no reciprocal in F32, which layout={NAME!r} stores; name"
            " weights as small as that in `exclude`"
        )
    return bytearray(inverse.astype("<f4").tobytes())


def _offset_binary(octets: bytearray) -> bytearray:
    """Turn nibbles of two's complement into nibbles of q + 8, and back."""
    return bytearray((np.frombuffer(octets, np.uint8) ^ 0x88).tobytes())


def _config(folder: ModelFolder, request: Request) -> str:
    """Return config.json with what the package writes about the schemes."""
    from compressed_tensors.compressors import ModelCompressor
    from compressed_tensors.quantization import QuantizationConfig

    modules: dict[Format, list[str]] = {}
    for name, becomes in request.becomes.items():
        modules.setdefault(becomes.format, []).append(name.removesuffix(".weight"))
    several = len(modules) > 1
    at = places_in(folder, [t.name for t in request.tensors])

    def both(names: list[str]) -> list[str]:
        """Return the names of modules in files, and those that transformers gives them."""
        there = [at[f"{m}.weight"] for m in names if f"{m}.weight" in at]
        renamed = [place.name.removesuffix(".weight") for place in there if place.pattern is None]
        return list(dict.fromkeys([*names, *renamed]))

    groups = {
        f"group_{i}": _group(fmt, [f"re:^{re.escape(m)}$" for m in both(names)] if several else ["Linear"])
        for i, (fmt, names) in enumerate(modules.items())
    }
    told = QuantizationConfig(
        config_groups=dict(groups),
        format="mixed-precision" if several else _scheme(next(iter(modules))).compression,
        quantization_status="compressed",  # without it the weights would be drawn at random
        ignore=both(left_wide(request)),
    )
    with tempfile.TemporaryDirectory() as place:
        # Weights are dequantized to BF16, so a model of another dtype would fail in its first product.
        Path(place, CONFIG).write_text(folder.text(("torch_dtype",), dtype="bfloat16"))
        ModelCompressor(quantization_config=told).update_config(place)
        return Path(place, CONFIG).read_text()


def _group(format: Format, targets: list[str]) -> QuantizationScheme:
    from compressed_tensors.quantization import QuantizationArgs, QuantizationScheme
    from compressed_tensors.quantization.quant_scheme import preset_name_to_scheme

    scheme = _scheme(format)
    if scheme.preset:
        group = preset_name_to_scheme(scheme.preset, targets)
    else:
        size = getattr(format, "size", None)
        weights = QuantizationArgs(
            num_bits=format.element.bits,
            type="int" if isinstance(format.element, Fixed) else "float",
            strategy="group" if isinstance(size, int) else "channel",
            group_size=size if isinstance(size, int) else None,
            symmetric=True,
            dynamic=False,
        )
        group = QuantizationScheme(targets=targets, weights=weights)
    # Without activations in the scheme the package would take int-quantized for pack-quantized.
    return group.model_copy(update={"format": scheme.compression})


def read(folder: ModelFolder | None, tensors: Mapping[str, StoredTensor]) -> Reading | None:
    """Find the narrow tensors of a folder whose config says ``quant_method: compressed-tensors``."""
    if folder is None or folder.quantization.get("quant_method") != NAME:
        return None
    modules: dict[str, dict[str, StoredTensor]] = {}
    for name, tensor in tensors.items():
        module, dot, leaf = name.rpartition(".")
        if leaf.startswith("weight"):
            modules.setdefault(module + dot, {})[leaf] = tensor
    narrow, claimed, problems = [], set[str](), []
    for module, leaves in modules.items():
        if "weight_scale" not in leaves and "weight_packed" not in leaves:
            continue
        claimed |= {module + leaf for leaf in leaves}
        try:
            narrow.append(_narrow(module, leaves, folder.dtype))
        except DataError as error:
            problems.append(f"tensor {module + 'weight'!r:.200}: {error}")
    return Reading(tuple(narrow), frozenset(claimed), (*_turned(folder), *problems))


def _turned(folder: ModelFolder) -> list[str]:
    """Return what is wrong with weights that are the model's under other inputs or outputs alone."""
    told = folder.quantization.get("transform_config")
    groups = told.get("config_groups") if isinstance(told, dict) else None
    schemes = groups.values() if isinstance(groups, dict) else ()
    uses = [use for scheme in schemes if isinstance(scheme, dict) for use in scheme.get("apply") or ()]
    online = {str(use.get("location")) for use in uses if isinstance(use, dict)} & {"input", "output"}
    return [
        f"'transform_config' in {CONFIG} turns each {place} of layers as they run, whose weights are turned"
        " against it, which is not read; give the model that it was made from"
        for place in sorted(online)
    ]


def _narrow(module: str, leaves: Mapping[str, StoredTensor], dtype: str) -> StoredNarrowTensor:
    """Return the narrow tensor of a module.

    Raises:
        DataError: its tensors are of no scheme that is read, or do not fit each other.
    """
    format, shape = _format_of(leaves)
    becomes, scheme = TensorLayout(format, shape, 1, dtype), _scheme(format)
    known = {part.name for part in scheme.parts.values()} | ({_SHAPE} if scheme is _INT4_SCHEME else set())
    if other := sorted(set(leaves) - known):
        raise DataError(f"it has {other[0]!r:.60}, which is not read; expected symmetric weights only")
    parts = {}
    for suffix, part in scheme.parts.items():
        own, there = becomes.parts[suffix], leaves.get(part.name)
        expected = _entry(part, own)
        if there is None or there.dtype != expected.dtype or there.shape not in _shapes(expected):
            found = "missing" if there is None else f"{there.dtype} {list(there.shape)!s:.100}"
            raise DataError(
                f"its {part.name!r} is {found}; {format.name:.100} of {list(shape)!s:.100} takes"
                f" {expected.dtype} {list(expected.shape)!s:.100}"
            )
        parts[suffix] = TranslatedPart(
            there.name, own.shape, own.dtype, there.file, there.start, translate=_translation(scheme, suffix)
        )
    return StoredNarrowTensor(module + "weight", becomes, parts, leaves["weight_scale"].file)


def _shapes(entry: HeaderEntry) -> tuple[tuple[int, ...], ...]:
    return ((1,), ()) if entry.dtype == "F32" else (entry.shape,)


def _format_of(leaves: Mapping[str, StoredTensor]) -> tuple[Format, tuple[int, ...]]:
    """Return the format and shape that the tensors of a module say by their dtypes and shapes.

    Raises:
        DataError: they are of no scheme that is read.
    """
    scale, weight = leaves.get("weight_scale"), leaves.get("weight", leaves.get("weight_packed"))
    if scale is None or weight is None or len(weight.shape) != 2 or len(scale.shape) != 2:
        raise DataError("it has no two-axis pair of a weight and its weight_scale; fetch it again")
    (rows, items), groups = weight.shape, scale.shape[1]
    shape: tuple[int, ...] = rows, items
    if "weight" in leaves:
        name = {("F8_E4M3", "U8"): "mxfp8_e4m3", ("F8_E4M3", "BF16"): "fp8_e4m3_channel"}
        name |= {("I8", "BF16"): "int8_channel"}
        told = name.get((weight.dtype, scale.dtype))
    elif weight.dtype == "U8":
        told = "nvfp4" if scale.dtype == "F8_E4M3" else "mxfp4" if items == 16 * groups else "mxfp6_e2m3"
        shape = rows, items * 8 // (6 if told == "mxfp6_e2m3" else 4)
    else:
        shape = _shape_of(leaves.get(_SHAPE))
        if not groups or shape[1] % groups or width(weight.dtype) != 32:
            raise DataError(f"{groups} scales do not divide rows of {shape[1]} values; fetch it again")
        size = "channel" if groups == 1 else shape[1] // groups
        return Block(_ALL_INT4, BF16, size), shape
    if told is None:
        raise DataError(f"{weight.dtype} with scales in {scale.dtype} is of no scheme that is read")
    return with_scale(CATALOGUE[told].format, BF16), shape


def _shape_of(stored: StoredTensor | None) -> tuple[int, ...]:
    if stored is None or stored.dtype != "I64" or stored.shape != (2,):
        raise DataError("its weight_shape is no pair of I64; fetch it again")
    with stored.file.open("rb") as file:
        shape = tuple(int(n) for n in np.frombuffer(stored.read(file, 0, 16), "<i8"))
    if not all(0 < n < 2**31 for n in shape):
        raise DataError(f"its weight_shape {list(shape)} is no shape; fetch it again")
    return shape


LAYOUT = Layout(NAME, _stored, _FORMATS, is_linear, write, read)
