"""Nested tuples, lists and dicts of tensors, arrays, numbers and texts as bytes, and back, without pickle.

The bytes are those of a safetensors file: tensors lie in it by number, and its metadata says where each goes.
"""

from __future__ import annotations

import json
from typing import Any, cast

import numpy as np
import safetensors.torch
import torch
from safetensors import SafetensorError

from fewbits.errors import ArgumentError, DataError

_KEY = "nested"
_PLAIN = (bool, int, float, str, type(None))
_SEQUENCES = {"tuple": tuple, "list": list}


def to_bytes(value: object) -> bytes:
    """Return a value as bytes, from which :func:`from_bytes` makes an equal one.

    Args:
        value: a dense tensor on the CPU without gradient, a NumPy array or scalar of real numbers, a number,
            a text, bytes, None; or a tuple, list or dict of such, dicts with texts and integers as keys.

    Raises:
        ArgumentError: there is something else in it; subclasses are something else, too.
    """
    tensors: dict[str, torch.Tensor] = {}
    tree = _taken_apart(value, "the value", tensors)
    octets: bytes = safetensors.torch.save(tensors, {_KEY: json.dumps(tree)})
    return octets


def from_bytes(octets: bytes) -> object:
    """Return the value of which :func:`to_bytes` made the bytes; its tensors own their memory.

    Raises:
        DataError: :func:`to_bytes` did not make them.
    """
    try:
        size = int.from_bytes(octets[:8], "little")
        tree = json.loads(json.loads(octets[8 : 8 + size])["__metadata__"][_KEY])
        return _put_together(tree, safetensors.torch.load(octets))
    except (SafetensorError, ValueError, KeyError, TypeError, IndexError) as error:
        raise DataError(f"bytes that are no nested value ({error}); write them again") from error


def _taken_apart(value: Any, where: str, tensors: dict[str, torch.Tensor]) -> list[Any]:
    """Return what JSON takes: a kind, and what belongs to it."""
    kind = type(value)
    if kind in _PLAIN:
        return ["plain", value]
    if kind in (tuple, list):
        return [kind.__name__, [_taken_apart(x, f"{where}[{i}]", tensors) for i, x in enumerate(value)]]
    if kind is dict and all(type(key) in (str, int) for key in value):
        return ["dict", [[key, _taken_apart(x, f"{where}[{key!r}]", tensors)] for key, x in value.items()]]
    number = str(len(tensors))
    if kind is bytes:
        tensors[number] = torch.frombuffer(bytearray(value), dtype=torch.uint8) if value else torch.empty(0)
        return ["bytes", number]
    if kind is torch.Tensor and _is_plain(value):
        tensors[number] = value.clone(memory_format=torch.contiguous_format)
        return ["tensor", number]
    if kind is np.ndarray or isinstance(value, np.generic):
        x = np.asarray(value)
        if x.dtype.kind in "biuf" and x.dtype.isnative and x.dtype.itemsize <= 8:
            # As bytes: torch does not have all of NumPy's dtypes.
            plain = np.frombuffer(x.tobytes(), np.uint8).copy()
            tensors[number] = torch.from_numpy(plain)
            return ["array" if kind is np.ndarray else "scalar", number, x.dtype.str, list(x.shape)]
    said = f"{kind.__name__} {value!r:.60}" if kind is not torch.Tensor else _described(value)
    raise ArgumentError(
        f"{where} is a {said}; expected dense tensors on the CPU without gradient, NumPy arrays of real"
        " numbers, numbers, texts, bytes, None, and tuples, lists and dicts of them with texts or integers"
        " as keys"
    )


def _is_plain(x: torch.Tensor) -> bool:
    dense = x.layout == torch.strided and x.device.type == "cpu"
    return dense and not (x.requires_grad or x.is_quantized or x.is_complex())


def _described(x: torch.Tensor) -> str:
    return f"tensor of {x.dtype} on {x.device}, {x.layout}, requires_grad={x.requires_grad}"


def _put_together(tree: list[Any], tensors: dict[str, torch.Tensor]) -> Any:
    kind, content = tree[:2]
    if kind == "plain":
        return content
    if kind in _SEQUENCES:
        return _SEQUENCES[kind](_put_together(x, tensors) for x in content)
    if kind == "dict":
        return {key: _put_together(x, tensors) for key, x in content}
    x = tensors[content]
    if kind == "tensor":
        return x
    if kind == "bytes":
        return x.numpy().tobytes()
    dtype, shape = tree[2:]
    array = np.frombuffer(bytearray(x.numpy()), dtype=dtype).reshape(shape)
    return cast(np.generic, array[()]) if kind == "scalar" else array
