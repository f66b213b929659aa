"""Save and load tensors, narrow ones among them, as the safetensors library does with ordinary ones."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any
from zlib import crc32

from fewbits.errors import ArgumentError, DataError, DTypeError
from fewbits.files.atomic import write_pieces
from fewbits.files.checkpoint import FLOATS, StoredTensor, opened, torch_dtype
from fewbits.files.checksum import difference, digits
from fewbits.files.contents import Narrow, sound_contents
from fewbits.files.header import Part, header
from fewbits.files.stored import KEY, SUFFIXES, Stored, metadata_text, part_name
from fewbits.tensor import NarrowTensor

if TYPE_CHECKING:
    import torch

# As safetensors writes them; the floating-point ones are in FLOATS.
_OTHERS = {
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
    """Write tensors to a ``.safetensors`` file, all of it or none of it; docs/layout.md has the layout.

    Args:
        tensors: by name; any shape, any device.
        path: the file.
        metadata: further text for the header.

    Raises:
        ArgumentError: a part of a narrow tensor would bear the name of another tensor, the metadata has a
            key ``fewbits``, or the folder does not exist.
        DTypeError: a dtype that the layout has no name for.
        OSError: the operating system refused: no permission, no space left.
    """
    import torch

    narrow = {name: _stored(name, t) for name, t in tensors.items() if isinstance(t, NarrowTensor)}
    whole: dict[str, Any] = {}
    placeholders: dict[str, Any] = {}
    for name, tensor in tensors.items():
        if isinstance(tensor, NarrowTensor):
            whole |= {part_name(name, suffix): getattr(tensor, suffix) for suffix in narrow[name].parts}
            placeholders[name] = torch.empty(0, dtype=tensor.dtype)
    clash = sorted(set(whole) & set(tensors))
    if clash:
        raise ArgumentError(
            f"{clash[0]!r:.200} is a part of a narrow tensor and a tensor; rename one of them"
        )
    if metadata and KEY in metadata:
        raise ArgumentError(
            f"metadata has the key {KEY!r}, which says how narrow tensors are stored; rename it"
        )
    whole |= {name: tensor for name, tensor in tensors.items() if name not in narrow} | placeholders
    about = {name: Part(_dtype(name, tensor), tuple(tensor.shape)) for name, tensor in whole.items()}
    kept = dict(metadata or {})
    if narrow:
        checksums = {name: digits(crc32(_octets(tensor))) for name, tensor in whole.items()}
        kept[KEY] = metadata_text(narrow, checksums)
    head = header(about, kept)
    order = sorted(whole, key=lambda name: (head.starts[name], about[name].nbytes))
    write_pieces(path, _pieces(head.octets, [whole[name] for name in order]))


def load_file(path: str | os.PathLike[str]) -> dict[str, torch.Tensor | NarrowTensor]:
    """Read a checkpoint into memory: its tensors by name, narrow ones as they are stored.

    A narrow tensor whose metadata has a ``view`` comes in that shape, in which it was quantized: the kernel
    of a convolution is a matrix. `fewbits cast --back` gives it its own shape again. One that was FP8 comes
    as BF16, which holds all its values.

    Args:
        path: a ``.safetensors`` file, an index of several, or a folder of them.

    Raises:
        DataError: it cannot be read, its narrow tensors are not what its metadata says, or it holds a tensor
            that torch cannot, such as four-bit floats with an odd last extent.
    """
    found: dict[str, torch.Tensor | NarrowTensor] = {}
    handles: dict[Any, Any] = {}
    for held in sound_contents(path).tensors:
        if held.file not in handles:
            handles[held.file] = opened(held.file)
        read = partial(_read, handles[held.file])
        found[held.name] = _narrow(held, read) if isinstance(held, Narrow) else read(held)
    return found


def _read(handle: Any, stored: StoredTensor) -> torch.Tensor:
    """Return one tensor; the library's checks of a header do not ask whether torch has such tensors."""
    from safetensors import SafetensorError

    try:
        tensor: torch.Tensor = handle.get_tensor(stored.name)
    except (SafetensorError, OSError) as error:
        raise DataError(
            f"{stored.file}: tensor {stored.name!r:.200} cannot be loaded ({error!s:.200}); store it in "
            "another dtype"
        ) from None
    if stored.crc32 is not None and (wrong := difference(stored, crc32(_octets(tensor)))):
        raise DataError(f"{stored.file}: {wrong}")
    return tensor


def _narrow(held: Narrow, read: Any) -> NarrowTensor:
    import torch

    about = held.stored
    # BF16 holds every FP8 value, and torch computes with it.
    dtype = torch.bfloat16 if about.dtype.startswith("F8") else torch_dtype(about.dtype)
    parts: list[Any] = [read(held.parts[s]) if s in held.parts else None for s in SUFFIXES]
    try:
        return NarrowTensor.from_parts(
            *parts,
            format=about.format,
            shape=about.quantized_shape,
            axis=about.axis,
            dtype=dtype,
            sparsity=about.sparsity,
        )
    except DataError as error:  # a mask
        raise DataError(f"{held.file}: tensor {held.name!r:.200}: {error}") from None


def _stored(name: str, tensor: NarrowTensor) -> Stored:
    dtype = _dtype(name, tensor, of=FLOATS)
    return Stored(tensor.format, tuple(tensor.shape), tensor.axis, dtype, sparsity=tensor.sparsity)


def _dtype(name: str, tensor: Any, *, of: Mapping[str, str] | None = None) -> str:
    """Return the dtype as safetensors writes it."""
    own = str(tensor.dtype).removeprefix("torch.")
    names = of or FLOATS | _OTHERS
    for written, spelled in names.items():
        if spelled == own:
            return written
    raise DTypeError(f"tensor {name!r:.200} is {own}; expected one of {', '.join(names.values())}")


def _pieces(octets: bytes, tensors: list[Any]) -> Iterator[Any]:
    """Yield the bytes of a file, one tensor at a time."""
    yield octets
    for tensor in tensors:
        yield _octets(tensor)


def _octets(tensor: Any) -> memoryview:
    """Return the bytes of a tensor."""
    import torch

    flat = tensor.detach().cpu().contiguous().reshape(-1)
    octets: memoryview = flat.view(torch.uint8).numpy().data
    return octets
