"""Save and load dictionaries of tensors, narrow ones included, as the safetensors library does."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any
from zlib import crc32

from fewbits.errors import ArgumentError, DataError, DTypeError
from fewbits.files.atomic import write_pieces
from fewbits.files.byte_layout import SUFFIXES, TensorLayout, part_name
from fewbits.files.checkpoint import FLOATS, StoredTensor, is_without_tensors, opened, torch_dtype
from fewbits.files.checksum import difference, digits
from fewbits.files.contents import sound_contents
from fewbits.files.narrow_metadata import KEY, metadata_text
from fewbits.files.narrow_tensor import StoredNarrowTensor
from fewbits.files.safetensors_header import METADATA, HeaderEntry, header
from fewbits.tensor import NarrowTensor

if TYPE_CHECKING:
    import torch
    from safetensors import safe_open

# Other dtypes in the spelling of safetensors, and powers of two alone; floating-point ones are in FLOATS.
_OTHERS = {
    "F8_E8M0": "float8_e8m0fnu",
    "BOOL": "bool",
    "U8": "uint8",
    "I8": "int8",
    "U16": "uint16",
    "I16": "int16",
    "U32": "uint32",
    "I32": "int32",
    "U64": "uint64",
    "I64": "int64",
    "C64": "complex64",
}


def save_file(
    tensors: Mapping[str, torch.Tensor | NarrowTensor],
    path: str | os.PathLike[str],
    metadata: Mapping[str, str] | None = None,
) -> None:
    """Write tensors to a ``.safetensors`` file, atomically; docs/layout.md describes the layout.

    Args:
        tensors: by name; any shape, any device.
        path: the file.
        metadata: further text for the header.

    Raises:
        ArgumentError: another suffix, a part of a narrow tensor would have the name of another tensor, a name
            is no text or ``__metadata__``, metadata is no text or has a key ``fewbits``, what was given is no
            mapping, or the folder does not exist.
        DTypeError: the layout has no name for a dtype, or something is no dense tensor with values.
        OSError: the operating system reported an error, such as no permission or no space left.
    """
    import torch

    _check_given(tensors, metadata or {})
    if Path(path).suffix.lower() != ".safetensors":
        raise ArgumentError(
            f"{os.fspath(path)!r} is no .safetensors file by its name, which load_file would not read; give"
            " another name"
        )
    narrow = {name: _layout(name, t) for name, t in tensors.items() if isinstance(t, NarrowTensor)}
    written: dict[str, torch.Tensor] = {}
    placeholders: dict[str, torch.Tensor] = {}
    for name, tensor in tensors.items():
        if isinstance(tensor, NarrowTensor):
            written |= {part_name(name, suffix): getattr(tensor, suffix) for suffix in narrow[name].parts}
            placeholders[name] = torch.empty(0, dtype=tensor.dtype)
    clash = sorted(set(written) & set(tensors))
    if clash:
        raise ArgumentError(
            f"{clash[0]!r:.200} is a part of a narrow tensor and a tensor; rename one of them"
        )
    if metadata and KEY in metadata:
        raise ArgumentError(
            f"metadata has the key {KEY!r}, which says how narrow tensors are stored; rename it"
        )
    written |= {name: tensor for name, tensor in tensors.items() if name not in narrow} | placeholders
    entries = {
        name: HeaderEntry(_dtype(name, tensor), tuple(tensor.shape)) for name, tensor in written.items()
    }
    texts = dict(metadata or {})
    if narrow:
        checksums = {name: digits(crc32(_octets(tensor))) for name, tensor in written.items()}
        texts[KEY] = metadata_text(narrow, checksums)
    head = header(entries, texts)
    order = sorted(written, key=lambda name: (head.starts[name], entries[name].nbytes))
    write_pieces(path, _file_pieces(head.octets, [written[name] for name in order]))


def load_file(path: str | os.PathLike[str]) -> dict[str, torch.Tensor | NarrowTensor]:
    """Read a checkpoint into memory: its tensors by name, narrow ones as NarrowTensors.

    A narrow tensor whose metadata has a ``view`` is returned in that shape, in which it was quantized: the
    kernel of a convolution is a matrix. `fewbits cast --back` restores its own shape. A narrow tensor that
    was FP8 before is returned with dtype bfloat16, which holds all its values.

    Args:
        path: a ``.safetensors`` file, an index of several, or a folder of them.

    Returns:
        All tensors; ``{}`` for a file of none, as one of metadata alone.

    Raises:
        DataError: it cannot be read, its narrow tensors do not match its metadata, or it has a tensor that
            torch cannot hold, such as four-bit floats with an odd last extent.
    """
    if is_without_tensors(path):
        return {}
    loaded: dict[str, torch.Tensor | NarrowTensor] = {}
    handles: dict[Path, safe_open] = {}
    for tensor in sound_contents(path).tensors:
        read = partial(_read, handles)
        loaded[tensor.name] = (
            assembled(tensor, read) if isinstance(tensor, StoredNarrowTensor) else read(tensor)
        )
    return loaded


def _read(handles: dict[Path, safe_open], stored: StoredTensor) -> torch.Tensor:
    """Return one tensor; raise DataError if torch cannot hold it, which the library does not check."""
    from safetensors import SafetensorError

    if type(stored) is not StoredTensor or stored.file.suffix.lower() != ".safetensors":
        return _read_directly(stored)
    if stored.file not in handles:
        handles[stored.file] = opened(stored.file, "pt")
    handle = handles[stored.file]
    try:
        tensor: torch.Tensor = handle.get_tensor(stored.name)
    except (SafetensorError, OSError) as error:
        raise DataError(
            f"{stored.file}: tensor {stored.name!r:.200} cannot be loaded ({error!s:.200}); store it in "
            "another dtype"
        ) from None
    check(stored, tensor)
    return tensor


def _read_directly(stored: StoredTensor) -> torch.Tensor:
    """Return a tensor that has other bits in its file, or lies in one of another kind."""
    import torch

    names = FLOATS | _OTHERS
    if stored.dtype not in names:
        raise DataError(
            f"{stored.file}: tensor {stored.name!r:.200} is {stored.dtype}, which torch cannot hold; name a"
            " checkpoint without it"
        )
    with stored.file.open("rb") as file:
        octets = stored.read(file, 0, stored.stored_bytes)
    flat = torch.frombuffer(octets, dtype=torch.uint8) if octets else torch.empty(0, dtype=torch.uint8)
    dtype: torch.dtype = getattr(torch, names[stored.dtype])
    return flat.view(dtype).reshape(stored.shape)


def check(stored: StoredTensor, tensor: torch.Tensor) -> None:
    """Raise DataError unless the bytes of a tensor are those whose checksum its file has."""
    if stored.crc32 is not None and (wrong := difference(stored, crc32(_octets(tensor)))):
        raise DataError(f"{stored.file}: {wrong}")


def assembled(stored: StoredNarrowTensor, read: Callable[[StoredTensor], torch.Tensor]) -> NarrowTensor:
    """Return a narrow tensor of the parts that ``read`` returns; raises DataError if they are none."""
    import torch

    layout = stored.layout
    # BF16 holds every FP8 value, and torch computes with it.
    dtype = torch.bfloat16 if layout.dtype.startswith("F8") else torch_dtype(layout.dtype)
    codes, *others = (read(stored.parts[s]) if s in stored.parts else None for s in SUFFIXES)
    assert codes is not None
    try:
        return NarrowTensor.from_parts(
            codes,
            *others,
            format=layout.format,
            shape=layout.quantized_shape,
            axis=layout.axis,
            dtype=dtype,
            sparsity=layout.pattern,
        )
    except DataError as error:  # a mask
        raise DataError(f"{stored.file}: tensor {stored.name!r:.200}: {error}") from None


def _check_given(tensors: Mapping[Any, Any], metadata: Mapping[Any, Any]) -> None:
    import torch

    for argument, given in (("tensors", tensors), ("metadata", metadata)):
        if not isinstance(given, Mapping):
            raise ArgumentError(f"{argument}={given!r:.200} is no mapping by names; expected a dict")
    for text in (*tensors, *metadata, *metadata.values()):
        if not isinstance(text, str):
            raise ArgumentError(f"{text!r:.200} in names or metadata; expected text")
    if METADATA in tensors:
        raise ArgumentError(f"a tensor is named {METADATA!r}, where the header has its metadata; rename it")
    for name, tensor in tensors.items():
        if not isinstance(tensor, torch.Tensor):
            what = type(tensor).__name__
        elif tensor.is_meta:
            what = "on the meta device"
        elif tensor.layout != torch.strided:
            what = f"of layout {tensor.layout}"
        elif not isinstance(tensor, NarrowTensor) and not _has_bytes(tensor):
            what = f"{type(tensor).__name__} without bytes of its own"
        else:
            continue
        raise DTypeError(
            f"tensor {name!r:.200} is {what}; expected a dense torch.Tensor that has values: convert it first"
        )


def _has_bytes(tensor: torch.Tensor) -> bool:
    """Return whether the values lie in memory as torch's dtypes say, by reading none of them."""
    try:
        _octets(tensor.detach()[..., :0] if tensor.dim() else tensor)
    except Exception:  # each class of tensors has its own way to refuse
        return False
    return True


def _layout(name: str, tensor: NarrowTensor) -> TensorLayout:
    dtype = _dtype(name, tensor, of=FLOATS)
    return TensorLayout(tensor.format, tuple(tensor.shape), tensor.axis, dtype, pattern=tensor.sparsity)


def _dtype(name: str, tensor: torch.Tensor, *, of: Mapping[str, str] | None = None) -> str:
    """Return the dtype as safetensors writes it."""
    own = str(tensor.dtype).removeprefix("torch.")
    names = of or FLOATS | _OTHERS
    for written, spelled in names.items():
        if spelled == own:
            return written
    raise DTypeError(f"tensor {name!r:.200} is {own}; expected one of {', '.join(names.values())}")


def _file_pieces(octets: bytes, tensors: list[torch.Tensor]) -> Iterator[bytes | memoryview]:
    """Yield the bytes of a file, one tensor at a time."""
    yield octets
    for tensor in tensors:
        yield _octets(tensor)


def _octets(tensor: torch.Tensor) -> memoryview:
    """Return the bytes of a tensor."""
    import torch

    flat = tensor.detach().cpu().resolve_conj().resolve_neg().contiguous().reshape(-1)
    if not flat.numel():  # a view of none keeps its strides, with which torch shows no bytes
        flat = flat.as_strided((0,), (1,))
    octets: memoryview = flat.view(torch.uint8).numpy().data
    return octets
