"""GGUF: one file for llama.cpp and what is built on it; the package writes and reads its header."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from io import BufferedReader
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from fewbits.errors import ArgumentError, DataError
from fewbits.files.byte_layout import TensorLayout
from fewbits.files.checkpoint import StoredTensor
from fewbits.files.encoding import Encoding, Plan, Put, Write
from fewbits.files.layouts.gguf_blocks import BLOCK_TYPES, BlockType, Octets
from fewbits.files.layouts.gguf_model import (
    ARCHITECTURES,
    Architecture,
    add_metadata,
    architecture,
    blocks_of,
    gguf_names,
    heads_of,
    model_names,
)
from fewbits.files.layouts.layout import Layout, Reading, Request, folder_of, is_linear, package, with_scale
from fewbits.files.model_folder import ModelFolder
from fewbits.files.narrow_tensor import StoredNarrowTensor
from fewbits.files.safetensors_header import Header, HeaderEntry
from fewbits.formats import CATALOGUE, Block, Float, Format

if TYPE_CHECKING:
    from gguf import GGUFReader

NAME = "gguf"
MAGIC = b"GGUF"
_FP16 = Float(5, 10, 15, "ieee")
_WIDE = {"F32": "fp32", "F16": "fp16", "BF16": "bf16"}  # kept as they are, if they have two axes
_BY_FORMAT = {str(kind.format): kind for kind in reversed(BLOCK_TYPES)}
_FORMATS = tuple(str(kind.format) for kind in BLOCK_TYPES)


def _stored(format: Format) -> Format | None:
    stored = format
    if isinstance(format, Block) and format.outer is None and format.scale == CATALOGUE["fp32"].format:
        stored = with_scale(format, _FP16)
    return stored if str(stored) in _BY_FORMAT else None


def _kind(format: Format) -> BlockType:
    return _BY_FORMAT[str(format)]


@dataclass(frozen=True)
class _Rows:
    """The order of the rows of a tensor: of each head, the two halves are interleaved."""

    heads: int  # 0: as they are
    count: int

    def place(self, row: int) -> int:
        """Return where a row of the checkpoint lies in GGUF."""
        if not self.heads:
            return row
        half = self.count // self.heads // 2
        head, within = divmod(row, 2 * half)
        first, at = divmod(within, half)
        return head * 2 * half + 2 * at + first


def _rows(name: str, shape: tuple[int, ...], arch: Architecture, config: Mapping[str, Any]) -> _Rows:
    if not arch.permuted or not (".q_proj." in name or ".k_proj." in name):
        return _Rows(0, shape[0])
    heads = heads_of(config)[".k_proj." in name]
    if shape[0] % (2 * heads):
        raise ArgumentError(f"{name!r:.200} has {shape[0]} rows, which are not {heads} heads of an even size")
    return _Rows(heads, shape[0])


def write(request: Request) -> Plan:
    """Plan one file with all tensors, the sizes of the model and its tokenizer.

    Raises:
        ArgumentError: the model is of a kind that is not written, a tensor has no name in it, or a row is not
            whole blocks.
        MissingDependencyError: gguf is not installed.
    """
    package(NAME, NAME)
    folder = folder_of(NAME, request.source)
    arch = architecture(folder)
    names = gguf_names(arch.name, blocks_of(folder), (t.name for t in request.tensors))
    encodings, infos = {}, dict[str, tuple[tuple[int, ...], str]]()
    for tensor in request.tensors:
        if tensor.name not in names:
            raise ArgumentError(f"{tensor.name!r:.200} has no name in the GGUF of {arch.name}; leave it out")
        becomes = request.becomes.get(tensor.name, _kept(tensor))
        kind = _kind(becomes.format)
        if becomes.shape[-1] % kind.values:
            raise ArgumentError(
                f"{tensor.name!r:.200} has rows of {becomes.shape[-1]} values, and {kind.name} in"
                f" layout='gguf' takes multiples of {kind.values}; name it in `exclude`"
            )
        rows = _rows(tensor.name, becomes.shape, arch, folder.config)
        encodings[tensor.name] = _encoding(names[tensor.name], becomes, kind, rows)
        infos[names[tensor.name]] = becomes.shape, kind.name
        if becomes.format.groups.outer is not None:
            infos[_outer_name(names[tensor.name])] = (1,), "F32"

    def header(entries: Mapping[str, HeaderEntry], texts: Mapping[str, str]) -> Header:
        return _header({name: (*infos[name], entry.nbytes) for name, entry in entries.items()}, folder, arch)

    return Plan(encodings, header)


def _kept(tensor: StoredTensor) -> TensorLayout:
    """Return the layout of a tensor that is not cast: vectors are FP32, others what they are."""
    if len(tensor.shape) < 2 and tensor.is_float:
        return TensorLayout(CATALOGUE["fp32"].format, tensor.shape, 0, tensor.dtype)
    if tensor.dtype not in _WIDE:
        raise ArgumentError(f"{tensor.name!r:.200} is {tensor.dtype}; layout='gguf' has {', '.join(_WIDE)}")
    return TensorLayout(CATALOGUE[_WIDE[tensor.dtype]].format, tensor.shape, 1, tensor.dtype)


def _outer_name(name: str) -> str:
    return name.removesuffix("weight") + "scale"


def _encoding(name: str, becomes: TensorLayout, kind: BlockType, rows: _Rows) -> Encoding:
    width = becomes.shape[-1] // kind.values * kind.nbytes
    step = width if len(becomes.shape) > 1 else kind.nbytes  # the rows of a bias are its values
    entries = {name: HeaderEntry("U8", (prod(becomes.shape[:-1]), width))}
    if becomes.format.groups.outer is not None:
        entries[_outer_name(name)] = HeaderEntry("F32", (1,))

    def put(write: Write) -> Put:
        pending: list[bytes] = []  # codes, which come before their scales

        def part(suffix: str, at: int, octets: bytes) -> None:
            if suffix == "outer":
                write(_outer_name(name), 0, octets)
            elif suffix == "codes" and kind.scale_bytes:
                pending.append(octets)
            else:
                codes = pending.pop() if kind.scale_bytes else octets
                scales = octets if kind.scale_bytes else b""
                first = at // (kind.scale_bytes or kind.code_bytes)
                _put_rows(write, name, first, _joined(kind, codes, scales), step, rows)

        return part

    return Encoding(becomes, entries, put, kept=becomes.format.name in _WIDE.values())


def _joined(kind: BlockType, codes: bytes, scales: bytes) -> Octets:
    count = len(codes) // kind.code_bytes
    return kind.join(
        np.frombuffer(codes, np.uint8).reshape(count, -1), np.frombuffer(scales, np.uint8).reshape(count, -1)
    )


def _put_rows(write: Write, name: str, first: int, blocks: Octets, width: int, rows: _Rows) -> None:
    """Write blocks that start at block ``first``, whole rows or part of one, each row at its place."""
    at, octets = first * blocks.shape[1], blocks.tobytes()
    if not rows.heads:
        write(name, at, octets)
        return
    while octets:
        row, within = divmod(at, width)
        here, octets = octets[: width - within], octets[width - within :]
        write(name, rows.place(row) * width + within, here)
        at += len(here)


def _header(
    infos: Mapping[str, tuple[tuple[int, ...], str, int]], folder: ModelFolder, arch: Architecture
) -> Header:
    """Let the package write all that comes before the tensors."""
    import gguf

    used = max((kind for _, kind, _ in infos.values() if kind != "F32"), default="F32", key=_count_in(infos))
    with tempfile.TemporaryDirectory() as place:
        writer = gguf.GGUFWriter(Path(place, "header"), arch.name)
        add_metadata(writer, folder, arch)
        types = gguf.LlamaFileType.__members__
        names = (f"MOSTLY_{used}", f"MOSTLY_{used}_MOE", f"ALL_{used}")
        writer.add_file_type(next(types[name] for name in names if name in types))
        writer.add_quantization_version(gguf.GGML_QUANT_VERSION)
        for name, (shape, kind, nbytes) in infos.items():
            writer.add_tensor_info(name, shape, np.dtype(np.float32), nbytes, gguf.GGMLQuantizationType[kind])
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_ti_data_to_file()
        writer.close()
        octets = Path(place, "header").read_bytes()
    pad = writer.data_alignment
    octets += bytes(-len(octets) % pad)
    starts, at = {}, len(octets)
    for name, (_, _, nbytes) in infos.items():
        starts[name] = at
        at += -(-nbytes // pad) * pad
    return Header(octets, starts, at)


def _count_in(infos: Mapping[str, tuple[tuple[int, ...], str, int]]) -> Any:
    return lambda kind: sum(1 for _, other, _ in infos.values() if other == kind)


@dataclass(frozen=True)
class _Part(StoredTensor):
    """A part of a tensor of GGUF: joined with others in blocks, and its rows in another order."""

    kind: BlockType = field(default=BLOCK_TYPES[-1], compare=False)
    index: int = field(default=0, compare=False)  # 0 codes, 1 scales
    width: int = field(default=1, compare=False)  # blocks of a row
    rows: _Rows = field(default=_Rows(0, 0), compare=False)

    def read(self, file: BufferedReader, at: int, size: int) -> bytearray:
        """Return ``size`` bytes from byte ``at`` on, as :mod:`fewbits.files.byte_layout` has them."""
        unit = self.kind.scale_bytes if self.index else self.kind.code_bytes
        first, last = at // unit, -(-(at + size) // unit)
        blocks = np.frombuffer(self._blocks(file, first, last), np.uint8).reshape(-1, self.kind.nbytes)
        octets = np.ascontiguousarray(self.kind.split(blocks)[self.index]).tobytes()
        return bytearray(octets[at - first * unit : at - first * unit + size])

    def _blocks(self, file: BufferedReader, first: int, last: int) -> bytearray:
        octets, nbytes = bytearray(), self.kind.nbytes
        wanted = (last - first) * nbytes
        while first < last:
            row, within = divmod(first, self.width)
            count = min(last - first, self.width - within) if self.rows.heads else last - first
            file.seek(self.start + (self.rows.place(row) * self.width + within) * nbytes)
            octets += file.read(count * nbytes)
            first += count
        if len(octets) != wanted:
            raise DataError(f"{self.file} was cut short while it was read; fetch or write it again")
        return octets


def is_one(path: Path) -> bool:
    """Return whether a file begins as GGUF does."""
    if not path.is_file():
        return False
    with path.open("rb") as file:
        return file.read(4) == MAGIC


def read_file(path: Path) -> tuple[list[StoredTensor], Reading]:
    """List the tensors of a file: ordinary ones, and narrow ones.

    Raises:
        DataError: the file is damaged, or big-endian.
        MissingDependencyError: gguf is not installed.
    """
    package(NAME, NAME)
    import gguf

    try:
        reader = gguf.GGUFReader(path)
    except Exception as error:  # what the package raises for a damaged file depends on where the damage is
        raise DataError(
            f"{path} cannot be read as GGUF ({type(error).__name__}: {error!s:.200}); fetch or write it again"
        ) from None
    if reader.endianess is gguf.GGUFEndian.BIG:
        raise DataError(
            f"{path} has its numbers in big-endian order, and only little-endian files are read; convert a"
            " copy of it with `gguf-convert-endian COPY little`"
        )
    names, arch, config = _model_of(reader)
    stored: dict[str, tuple[BlockType, _Part]] = {}
    problems = []
    for tensor in reader.tensors:
        shape = tuple(int(n) for n in reversed(tensor.shape))
        kinds = [kind for kind in BLOCK_TYPES if kind.name == tensor.tensor_type.name]
        name = names.get(tensor.name, tensor.name)
        if not kinds or not shape or shape[-1] % kinds[-1].values:
            problems.append(
                f"tensor {name!r:.200} is {tensor.tensor_type.name} {list(shape)!s:.100}, which is not read"
            )
            continue
        kind, start = kinds[-1], int(tensor.data_offset)
        if start + prod(shape) // kind.values * kind.nbytes > path.stat().st_size:
            problems.append(f"tensor {name!r:.200} ends behind the file; fetch it again")
            continue
        try:
            rows = _rows(name, shape, arch, config)
        except ArgumentError:
            problems.append(
                f"tensor {name!r:.200} has {shape[0]} rows in the order of heads, and the file has no count"
                " of heads for all layers that fits them, which is not read"
            )
            continue
        is_row = len(shape) == 1 and rows.heads > 0
        width = 1 if is_row else shape[-1] // kind.values
        dtype = kind.name if kind.name in _WIDE else "U8"
        stored[tensor.name] = kind, _Part(name, shape, dtype, path, start, None, kind, 0, width, rows)
    ordinary, narrow = list[StoredTensor](), list[StoredNarrowTensor]()
    for there, (kind, part) in stored.items():
        outer = stored.get(_outer_name(there))
        if kind.name in _WIDE:
            if not _is_outer(there, stored):
                ordinary.append(part)
            continue
        narrow.append(_narrow(kind, part, None if outer is None else outer[1]))
    return ordinary, Reading(tuple(narrow), frozenset(), tuple(problems))


def _is_outer(name: str, stored: Mapping[str, tuple[BlockType, _Part]]) -> bool:
    scaled = stored.get(name.removesuffix("scale") + "weight") if name.endswith(".scale") else None
    return scaled is not None and scaled[0].name == "NVFP4" and stored[name][1].shape == (1,)


def _narrow(kind: BlockType, part: _Part, outer: _Part | None) -> StoredNarrowTensor:
    if kind.name == "NVFP4" and outer is not None and (outer.shape, outer.dtype) == ((1,), "F32"):
        kind = next(k for k in BLOCK_TYPES if k.name == "NVFP4")
    # The file does not say what the tensor was: the narrowest dtype that holds every value.
    fits = kind.format.groups.outer is None and kind.name in ("MXFP4", "NVFP4")
    becomes = TensorLayout(kind.format, part.shape, len(part.shape) - 1, "BF16" if fits else "F32")
    parts: dict[str, StoredTensor] = {}
    for suffix, entry in becomes.parts.items():
        if suffix == "outer":
            assert outer is not None
            parts[suffix] = StoredTensor(outer.name, entry.shape, "F32", outer.file, outer.start)
        else:
            index = 1 if suffix == "scales" else 0
            parts[suffix] = _Part(
                part.name, entry.shape, "U8", part.file, part.start, None, kind, index, part.width, part.rows
            )
    return StoredNarrowTensor(part.name, becomes, parts, part.file)


def _model_of(reader: GGUFReader) -> tuple[dict[str, str], Architecture, dict[str, Any]]:
    """Return the names in checkpoints by those in the file, the architecture, and counts of heads.

    A file of another architecture keeps its names and the order of its rows.
    """

    def told(key: str) -> object:
        found = reader.get_field(key)
        return None if found is None else found.contents()

    arch = told("general.architecture")
    known = next((a for a in ARCHITECTURES.values() if a.name == arch), None)
    blocks = told(f"{arch}.block_count")
    if known is None or not isinstance(blocks, int) or not 0 < blocks < 10_000:
        return {}, Architecture(str(arch), False), {}
    there = gguf_names(known.name, blocks, model_names(known, blocks))
    keys = {"num_attention_heads": "attention.head_count", "num_key_value_heads": "attention.head_count_kv"}
    counts = {key: told(f"{arch}.{name}") for key, name in keys.items()}
    for key, count in counts.items():  # which may be one for each layer
        if isinstance(count, list) and len(set(count)) == 1:
            counts[key] = count[0]
    return {name: own for own, name in there.items()}, known, counts


def read(folder: ModelFolder | None, tensors: Mapping[str, StoredTensor]) -> Reading | None:
    """GGUF is never in safetensors files; :func:`read_file` reads it."""
    return None


LAYOUT = Layout(NAME, _stored, _FORMATS, is_linear, write, read, ".gguf")
