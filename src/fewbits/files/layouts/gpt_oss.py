"""gpt-oss: experts in MXFP4 as OpenAI's checkpoints have them; transformers, vLLM and others load them.

A checkpoint holds the experts of a layer as one tensor [experts, in, out]. It is stored transposed, with
blocks along ``in``, the axis of the sum.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from io import BufferedReader

import numpy as np

from fewbits.errors import ArgumentError, DataError
from fewbits.files.byte_layout import TensorLayout
from fewbits.files.checkpoint import StoredTensor
from fewbits.files.encoding import Encoding, Plan, Put, Write
from fewbits.files.layouts.layout import Layout, Reading, Request, folder_of, package
from fewbits.files.model_folder import CONFIG, ModelFolder
from fewbits.files.narrow_tensor import StoredNarrowTensor, TranslatedPart
from fewbits.files.safetensors_header import HeaderEntry
from fewbits.formats import CATALOGUE, Format

NAME = "gpt-oss"
_MXFP4 = CATALOGUE["mxfp4"].format
_EXPERTS = (".experts.gate_up_proj", ".experts.down_proj")
_BLOCKS, _SCALES = "_blocks", "_scales"
_KEPT = ("model.layers.*.self_attn", "model.layers.*.mlp.router", "model.embed_tokens", "lm_head")


def _stored(format: Format) -> Format | None:
    return format if format == _MXFP4 else None


def _is_experts(tensor: StoredTensor) -> bool:
    return tensor.name.endswith(_EXPERTS) and tensor.is_float and len(tensor.shape) == 3 and tensor.count > 0


@dataclass(frozen=True)
class _Transposed(StoredTensor):
    """A tensor [experts, in, out] read as [experts, out, in]; one expert is in memory."""

    read_last: dict[tuple[str, int], bytes] = field(default_factory=dict, compare=False)

    def read(self, file: BufferedReader, at: int, size: int) -> bytearray:
        """Return ``size`` bytes from byte ``at`` of the transposed tensor on."""
        octets, of_expert = bytearray(), self.stored_bytes // self.shape[0]
        while len(octets) < size:
            expert, within = divmod(at + len(octets), of_expert)
            octets += self._expert(file, expert, of_expert)[within : within + size - len(octets)]
        return octets

    def _expert(self, file: BufferedReader, expert: int, nbytes: int) -> bytes:
        key = self.name, expert
        if key not in self.read_last:
            self.read_last.clear()
            _, rows, row = self.shape
            stored = np.frombuffer(super().read(file, expert * nbytes, nbytes), np.uint8)
            values = stored.reshape(row, rows, -1).swapaxes(0, 1)
            self.read_last[key] = np.ascontiguousarray(values).tobytes()
        return self.read_last[key]


def write(request: Request) -> Plan:
    """Plan a folder of a gpt-oss model with its experts in MXFP4.

    Raises:
        ArgumentError: the source is no folder of a gpt-oss model, some of its experts are left out, or a row
            is not whole blocks.
        MissingDependencyError: transformers is not installed.
    """
    package("transformers", NAME)
    folder = folder_of(NAME, request.source)
    kind = folder.config.get("model_type")
    if kind != "gpt_oss":
        raise ArgumentError(f"layout={NAME!r} has no model_type {kind!r:.60}; it has gpt_oss alone")
    left = [t.name for t in request.tensors if _is_experts(t) and t.name not in request.becomes]
    if left:
        raise ArgumentError(
            f"{left[0]!r:.200} would stay wide, and layout={NAME!r} has all experts in mxfp4; cast it too"
        )
    views, encodings, read_last = {}, {}, dict[tuple[str, int], bytes]()
    for tensor in request.tensors:
        if tensor.name not in request.becomes:
            continue
        experts, row, rows = tensor.shape
        if row % 32:
            raise ArgumentError(
                f"{tensor.name!r:.200} has {row} inputs, and mxfp4 in layout={NAME!r} takes multiples of 32"
            )
        shape = experts, rows, row
        views[tensor.name] = _Transposed(
            tensor.name, shape, tensor.dtype, tensor.file, tensor.start, read_last=read_last
        )
        becomes = TensorLayout(_MXFP4, tensor.shape, 1, tensor.dtype)
        encodings[tensor.name] = _encoding(tensor.name, becomes)
    return Plan(
        encodings,
        metadata={"format": "pt"},
        texts={CONFIG: _config(folder)},
        copies=folder.companions(),
        views=views,
    )


def _encoding(name: str, becomes: TensorLayout) -> Encoding:
    experts, row, rows = becomes.shape
    entries = {
        name + _BLOCKS: HeaderEntry("U8", (experts, rows, row // 32, 16)),
        name + _SCALES: HeaderEntry("U8", (experts, rows, row // 32)),
    }

    def put(write: Write) -> Put:
        ends = {"codes": _BLOCKS, "scales": _SCALES}
        return lambda suffix, at, octets: write(name + ends[suffix], at, octets)

    return Encoding(becomes, entries, put)


def _config(folder: ModelFolder) -> str:
    from transformers import Mxfp4Config

    return folder.text(quantization_config=Mxfp4Config(modules_to_not_convert=list(_KEPT)).to_dict())


def read(folder: ModelFolder | None, tensors: Mapping[str, StoredTensor]) -> Reading | None:
    """Find the experts of a folder whose config says ``quant_method: mxfp4``."""
    if folder is None or folder.quantization.get("quant_method") != "mxfp4":
        return None
    narrow, claimed, problems = [], set[str](), []
    for name in (n.removesuffix(_BLOCKS) for n in tensors if n.endswith(_BLOCKS)):
        claimed |= {name + _BLOCKS, name + _SCALES}
        try:
            narrow.append(_narrow(name, tensors[name + _BLOCKS], tensors.get(name + _SCALES), folder.dtype))
        except DataError as error:
            problems.append(f"tensor {name!r:.200}: {error}")
    return Reading(tuple(narrow), frozenset(claimed), tuple(problems))


def _narrow(name: str, blocks: StoredTensor, scales: StoredTensor | None, dtype: str) -> StoredNarrowTensor:
    if blocks.dtype != "U8" or len(blocks.shape) != 4 or blocks.shape[3] != 16:
        found = f"{blocks.dtype} {list(blocks.shape)!s:.100}"
        raise DataError(f"its blocks are {found}; expected U8 of four axes, the last of 16")
    experts, rows, groups, _ = blocks.shape
    if scales is None or (scales.dtype, scales.shape) != ("U8", (experts, rows, groups)):
        found = "missing" if scales is None else f"{scales.dtype} {list(scales.shape)!s:.100}"
        raise DataError(f"its scales are {found}; expected U8 {[experts, rows, groups]!s:.100}")
    becomes = TensorLayout(_MXFP4, (experts, 32 * groups, rows), 1, dtype)
    parts = {
        suffix: TranslatedPart(part.name, own.shape, "U8", part.file, part.start)
        for (suffix, own), part in zip(becomes.parts.items(), (blocks, scales), strict=True)
    }
    return StoredNarrowTensor(name, becomes, parts, blocks.file)


LAYOUT = Layout(NAME, _stored, ("mxfp4",), _is_experts, write, read)
