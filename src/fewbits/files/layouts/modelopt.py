"""ModelOpt: NVFP4 weights as NVIDIA's tools write them, for TensorRT-LLM and vLLM.

The scale over the scales is a multiplier, and the config is in config.json and in a file of its own.
"""

from __future__ import annotations

import json
from collections.abc import Mapping

from fewbits.errors import DataError
from fewbits.files.byte_layout import TensorLayout
from fewbits.files.checkpoint import StoredTensor
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
)
from fewbits.files.model_folder import CONFIG, ModelFolder, read_json_object
from fewbits.files.narrow_tensor import StoredNarrowTensor, TranslatedPart
from fewbits.files.safetensors_header import HeaderEntry
from fewbits.formats import CATALOGUE, Format

NAME = "modelopt"
OWN_CONFIG = "hf_quant_config.json"
_PRODUCER = {"name": "modelopt", "version": "0.47.0"}  # whose layout it is, by which programs know it
_NVFP4 = CATALOGUE["nvfp4"].format
_ENDS = {"codes": "", "scales": "_scale", "outer": "_scale_2"}  # after the name of the weight
_INPUTS = "pre_quant_scale"  # of AWQ: what inputs are multiplied by, and weights were divided by
_DTYPES = {"codes": "U8", "scales": "F8_E4M3", "outer": "F32"}


def _stored(format: Format) -> Format | None:
    return format if format == _NVFP4 else None


def write(request: Request) -> Plan:
    """Plan a folder with NVFP4 weights.

    Raises:
        ArgumentError: the source is no folder with a config, or a row is not whole blocks.
    """
    folder = folder_of(NAME, request.source)
    needs_multiple(NAME, request.becomes)
    told = {
        "quant_algo": "W4A16_NVFP4",  # of weights alone: there are no scales of activations
        "kv_cache_quant_algo": None,
        "group_size": 16,
        "exclude_modules": left_wide(request),
    }
    config = folder.text(quantization_config={"quant_method": NAME, "producer": _PRODUCER, **told})
    own = json.dumps({"producer": _PRODUCER, "quantization": told}, indent=2) + "\n"
    cast = [t for t in request.tensors if t.name in request.becomes]
    return Plan(
        encodings={name: _encoding(name, becomes) for name, becomes in request.becomes.items()},
        metadata={"format": "pt"},
        texts={CONFIG: config, OWN_CONFIG: own},
        copies=[file for file in folder.companions() if file.name != OWN_CONFIG],
        shared=fused(cast) if request.fuse else {},
    )


def _encoding(name: str, becomes: TensorLayout) -> Encoding:
    def put(write: Write) -> Put:
        return lambda suffix, at, octets: write(name + _ENDS[suffix], at, octets)

    return Encoding(becomes, {name + _ENDS[s]: entry for s, entry in _entries(becomes).items()}, put)


def _entries(becomes: TensorLayout) -> dict[str, HeaderEntry]:
    return {
        suffix: HeaderEntry(_DTYPES[suffix], () if suffix == "outer" else own.shape)
        for suffix, own in becomes.parts.items()
    }


def read(folder: ModelFolder | None, tensors: Mapping[str, StoredTensor]) -> Reading | None:
    """Find the narrow tensors of a folder whose config, or the tool's own file, says that they are its.

    Scales of activations stay ordinary tensors; those of AWQ, which change the weights too, are a problem.
    """
    if folder is None or not _is_own(folder):
        return None
    narrow, claimed, problems = [], set[str](), []
    for name in tensors:
        if name.endswith(".weight") and name + "_scale" in tensors:
            claimed |= {name + end for end in _ENDS.values()}
            try:
                narrow.append(_narrow(name, tensors, folder.dtype))
            except DataError as error:
                problems.append(f"tensor {name!r:.200}: {error}")
    return Reading(tuple(narrow), frozenset(claimed), tuple(problems))


def _is_own(folder: ModelFolder) -> bool:
    own = folder.path / OWN_CONFIG
    if folder.quantization or not own.is_file():
        return folder.quantization.get("quant_method") == NAME
    # Earlier versions of the tool leave config.json as it is.
    producer = read_json_object(own).get("producer")
    return isinstance(producer, dict) and producer.get("name") == NAME


def _narrow(name: str, tensors: Mapping[str, StoredTensor], dtype: str) -> StoredNarrowTensor:
    codes = tensors[name]
    if name.removesuffix("weight") + _INPUTS in tensors:
        raise DataError(
            f"its inputs are multiplied by {_INPUTS!r}, and it was divided by that, which is not read;"
            " give the model that it was made from"
        )
    if codes.dtype != "U8" or len(codes.shape) != 2:
        raise DataError(f"it is {codes.dtype} {list(codes.shape)!s:.100}; expected NVFP4, as U8 of two axes")
    becomes = TensorLayout(_NVFP4, (codes.shape[0], 2 * codes.shape[1]), 1, dtype)
    parts = {}
    for suffix, expected in _entries(becomes).items():
        there, own = tensors.get(name + _ENDS[suffix]), becomes.parts[suffix]
        shapes = [(), (1,)] if suffix == "outer" else [expected.shape]
        if there is None or there.dtype != expected.dtype or there.shape not in shapes:
            found = "missing" if there is None else f"{there.dtype} {list(there.shape)!s:.100}"
            raise DataError(
                f"its {'weight' + _ENDS[suffix]!r} is {found}; nvfp4 of {list(becomes.shape)!s:.100} takes"
                f" {expected.dtype} {list(expected.shape)!s:.100}"
            )
        parts[suffix] = TranslatedPart(there.name, own.shape, own.dtype, there.file, there.start)
    return StoredNarrowTensor(name, becomes, parts, codes.file)


LAYOUT = Layout(NAME, _stored, ("nvfp4",), is_linear, write, read)
