"""The reader of checkpoints: a file or an index is refused in one line, or everything in it can be read."""

import json
import random
import struct
import tempfile
from math import prod
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save

import fewbits as fb
from fewbits.errors import FewbitsError
from fewbits.files import checkpoint as module
from fewbits.files import inspect, load_file, restore, save_file
from fewbits.files.safetensors_header import width
from fewbits.tensor import NarrowTensor
from tests.fuzz.target import NUMBERS, Target, not_accepted, with_other_number

FORMATS = ("mxfp4", "int(5)", "nvfp4", "mx9", "posit8_1", "lookup(-1,-0.5,0,0.5,1)", "msfp12")
KEYS = ("dtype", "shape", "data_offsets", "__metadata__", "fewbits", "version", "tensors", "format", "axis")
KEYS += ("view", "name", "weight_map", "metadata", "total_size", "w", "w.codes", "w.scales", "w.outer")
KEYS += (
    "a.safetensors",
    "b.safetensors",
    "../a.safetensors",
    "F32",
    "BF16",
    "F8_E4M3",
    "F4",
    "I64",
    "BOOL",
    "C64",
)
LEAVES: tuple[Any, ...] = (
    None,
    True,
    False,
    [],
    {},
    "",
    0,
    -1,
    1,
    2,
    0.5,
    1e400,
    2**31,
    2**63 - 1,
    2**63,
    2**64,
)
INDEX = {"metadata": {"total_size": 60}, "weight_map": {"a": "a.safetensors", "b": "b.safetensors"}}
PARTS = {
    "a.safetensors": save({"a": torch.ones(3, 4)}),
    "b.safetensors": save({"b": torch.ones(5, dtype=torch.bfloat16)}),
}


def _seeds() -> list[bytes]:
    ordinary = {"a": torch.ones(3, 4), "b.2": torch.ones(5, dtype=torch.bfloat16), "c": torch.arange(2)}
    ordinary |= {
        "f": torch.ones(2, 3, dtype=torch.float8_e4m3fn),
        "e": torch.zeros(0, 3),
        "s": torch.ones(()),
    }
    seeds = [save(ordinary, {"made": "here"}), json.dumps(INDEX).encode()]
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "m.safetensors"
        for fmt in FORMATS:
            save_file({"w": fb.quantize(torch.ones(2, 37), fmt), "x": torch.ones(2, 2, 2, 2)}, path)
            seeds.append(path.read_bytes())
    return seeds


# ------------------------------------------------------------------------------------------- changes to JSON


def _changed_tree(rng: random.Random, tree: Any) -> Any:
    """Return a JSON document with one thing in it changed, at any depth."""
    if isinstance(tree, dict) and tree and rng.random() < 0.85:
        key = rng.choice(sorted(tree))
        kind = rng.randrange(8)
        if kind == 0:
            return {k: v for k, v in tree.items() if k != key}
        if kind == 1:
            return {rng.choice(KEYS) if k == key else k: v for k, v in tree.items()}
        if kind == 2:
            return tree | {rng.choice(KEYS): tree[rng.choice(sorted(tree))]}
        return tree | {key: _changed_tree(rng, tree[key])}
    if isinstance(tree, list) and tree and rng.random() < 0.8:
        at = rng.randrange(len(tree))
        kept = tree[at : at + 1] * rng.randrange(3) or [_changed_tree(rng, tree[at])]
        return tree[:at] + kept + tree[at + 1 :]
    if isinstance(tree, str) and rng.random() < 0.8:
        return _changed_text(rng, tree)
    if type(tree) is int and rng.random() < 0.5:
        return tree + rng.choice((-8, -2, -1, 1, 2, 8, 64))
    return rng.choice((*LEAVES, *KEYS))


def _changed_text(rng: random.Random, text: str) -> str:
    try:
        inner = json.loads(text)
    except (ValueError, RecursionError):
        inner = None
    if isinstance(inner, dict) and rng.random() < 0.9:
        return json.dumps(_changed_tree(rng, inner))
    if rng.random() < 0.5:
        return with_other_number(rng, text.encode("utf-8", "replace")).decode("utf-8", "replace")
    return rng.choice((*KEYS, *FORMATS, text * 2, text[1:], "\ud800", "\0", "x" * 300))


def _mutate(rng: random.Random, data: bytes) -> bytes:
    """Change the header, and the length before it where there is one."""
    whole = data[:1] == b"{"
    size = len(data) if whole else int.from_bytes(data[:8], "little")
    try:
        tree = json.loads(data if whole else data[8 : 8 + size])
    except (ValueError, RecursionError):
        return with_other_number(rng, data)
    tree = _changed_tree(rng, tree)
    if not whole and isinstance(tree, dict) and rng.random() < 0.5:
        tree = _with_sound_offsets(tree)
    text = json.dumps(tree).encode()
    if whole:
        return text
    body = data[8 + size :]
    return (
        struct.pack("<Q", len(text))
        + text
        + (body * 2)[: max(_end_of(tree), 0) if rng.random() < 0.8 else None]
    )


def _with_sound_offsets(tree: dict[str, Any]) -> dict[str, Any]:
    """Return a header whose offsets are what its shapes ask for, so that more than they is looked at."""
    at = 0
    for name, told in tree.items():
        if name != "__metadata__" and isinstance(told, dict):
            shape, dtype = told.get("shape"), told.get("dtype")
            if not isinstance(shape, list) or not isinstance(dtype, str) or {type(n) for n in shape} - {int}:
                continue
            end = at + -(-prod(shape) * width(dtype) // 8)
            if 0 <= end < 1 << 15:
                told["data_offsets"], at = [at, end], end
    return tree


def _end_of(tree: Any) -> int:
    ends = [0]
    for told in tree.values() if isinstance(tree, dict) else ():
        offsets = told.get("data_offsets") if isinstance(told, dict) else None
        if isinstance(offsets, list) and offsets and type(offsets[-1]) is int and offsets[-1] < 1 << 16:
            ends.append(offsets[-1])
    return max(ends)


# -------------------------------------------------------------------------------------------------- one input


def run(data: bytes, folder: Path) -> bool:
    if data[:1] == b"{":
        for name, octets in PARTS.items():
            (folder / name).write_bytes(octets)
        path = folder / "m.safetensors.index.json"
    else:
        path = folder / "m.safetensors"
    path.write_bytes(data)
    try:
        tensors = module.read_checkpoint(path)
    except FewbitsError as error:
        return not_accepted(error)
    for tensor in tensors:
        if tensor.is_float:
            assert sum(piece.size for piece in module.chunks(tensor, tensor.count)) == tensor.count
    problems = inspect(path).problems
    try:
        loaded = load_file(path)
        for tensor in loaded.values():
            if isinstance(tensor, NarrowTensor):
                tensor.dequantize()
        restore(path, folder / ("back" if path.name.endswith(".json") else "back.safetensors"))
    except FewbitsError as error:
        return not_accepted(error) or bool(problems)
    return True


TARGET = Target(
    _seeds,
    tuple(k.encode() for k in KEYS) + NUMBERS + (b'"', b"{", b"}", b"[", b"]", b"\\u0000"),
    run,
    _mutate,
)
