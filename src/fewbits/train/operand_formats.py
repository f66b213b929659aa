"""Which values lie in which memory: of what format they are, and whether they are a model's weights.

Memory is what is known, not tensors: views share it, and what autograd saves and gives back does too.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

import torch
from torch.multiprocessing.reductions import StorageWeakRef

from fewbits.formats import parse
from fewbits.formats.narrowest import narrowest
from fewbits.tensor import NarrowTensor
from fewbits.tensor.narrow.torch_dtypes import dtype_name

# Operators that give what went in, at another place or in another dtype.
_COPIES = ("_to_copy", "clone", "copy_", "im2col")
_SCALINGS = ("mul", "div")
_FEWEST = 4096  # notes before the first look for memory that was freed


class Operand(NamedTuple):
    """What a factor of a product was.

    Attributes:
        format: of its values; where nothing rounded them, that of their dtype.
        rounded: whether an operation of fewbits rounded them to it.
        cast: the dtype that they lie in is a wider one, which they were cast to.
        weight: they are parameters or buffers, or computed of these alone.
    """

    format: str
    rounded: bool
    cast: str | None
    weight: bool


class _Note(NamedTuple):
    memory: StorageWeakRef
    dtype: torch.dtype
    format: str | None
    rounded: bool
    weight: bool


class OperandFormats:
    """Follows formats through the operations that torch dispatches; it keeps no memory alive."""

    def __init__(self) -> None:
        self._notes: dict[int, _Note] = {}
        self._limit = _FEWEST

    def weights(self, tensors: Iterable[torch.Tensor]) -> None:
        """Note that tensors are weights."""
        for x in tensors:
            note = self._note(x)
            if note is None or not note.weight:
                kept = (None, False) if note is None else (note.format, note.rounded)
                self._write(x, *kept, weight=True)

    def operand(self, x: torch.Tensor, rounds_to: str = "") -> Operand:
        """Return what a factor of a product is; ``rounds_to`` is the format that the product rounds it to."""
        note, dtype = self._note(x), dtype_name(x.dtype)
        weight = note is not None and note.weight
        if isinstance(x, NarrowTensor):
            return Operand(str(x.format), True, None, weight)
        if rounds_to:
            return Operand(_narrower(str(parse(rounds_to)), dtype), True, None, weight)
        if note is None or note.format is None or note.dtype != x.dtype:
            return Operand(dtype, False, None, weight)
        return Operand(_narrower(note.format, dtype), note.rounded, None if note.rounded else dtype, weight)

    def follow(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], result: Any) -> None:
        """Note what an operation made of what it was given."""
        given = list(tensors_in((args, kwargs)))
        written = {id(x) for x in _written(func, args, kwargs)}
        made = [x for x in tensors_in(result) if id(x) not in written]
        name = func.__name__.partition(".")[0]
        for x in given:
            if id(x) in written and name != "copy_":
                self._write(x, None, False, weight=self._is_weight(x))
        if func.namespace == "fewbits" and name in ("fake_quantize", "dequantize"):
            text = args[2] if name == "fake_quantize" else args[4]
            self._write(made[0], str(parse(text)), True, weight=self._is_weight(given[0]))
            return
        if func.namespace == "aten" and name in _COPIES and given:
            self._copied(*((given[0], given[1]) if name == "copy_" else (result, given[0])))
            return
        if name in _SCALINGS and made and self._scaled(made[0], args):
            return
        weights = [self._is_weight(x) for x in given if x.ndim]
        for x in made if weights and all(weights) else ():
            if self._note(x) is None:
                self._write(x, None, False, weight=True)

    def _copied(self, to: Any, source: torch.Tensor) -> None:
        """Take over the note of what was copied whole, without a change of any value."""
        note, weight = self._note(source), self._is_weight(source) or self._is_weight(to)
        if to.numel() * to.element_size() != _nbytes(to) or isinstance(source, NarrowTensor):
            self._write(to, None, False, weight=weight)
            return
        same = source.dtype == to.dtype
        wider = to.dtype.itemsize > source.dtype.itemsize
        known = note if note is not None and note.format is not None and note.dtype == source.dtype else None
        if known is not None and (same or wider or _unchanged(source, to)):
            self._write(to, known.format, known.rounded, weight=weight)
        elif wider and source.is_floating_point() and to.is_floating_point():
            self._write(to, dtype_name(source.dtype), False, weight=weight)
        elif known is not None or weight or self._note(to) is not None:
            self._write(to, None, False, weight=weight)

    def _scaled(self, result: torch.Tensor, args: tuple[Any, ...]) -> bool:
        """Keep the format of what one power of two multiplies, as the shift of a role does."""
        x, factor = args[:2]
        if not isinstance(x, torch.Tensor) or (isinstance(factor, torch.Tensor) and factor.ndim):
            return False
        note = self._note(x)
        if note is None or note.format is None or result.dtype != x.dtype:
            return False
        if abs(math.frexp(float(factor))[0]) != 0.5:  # the mantissa of a power of two
            return False
        self._write(result, note.format, note.rounded, weight=note.weight)
        return True

    def _is_weight(self, x: torch.Tensor) -> bool:
        note = self._note(x)
        return note is not None and note.weight

    def _note(self, x: torch.Tensor) -> _Note | None:
        memory = _memory(x)
        return None if memory is None else self._notes.get(memory._cdata)

    def _write(self, x: torch.Tensor, format: str | None, rounded: bool, *, weight: bool) -> None:
        memory = _memory(x)
        if memory is None:
            return
        if format is None and not weight:
            self._notes.pop(memory._cdata, None)
            return
        if len(self._notes) >= self._limit:
            self._notes = {key: note for key, note in self._notes.items() if not note.memory.expired()}
            self._limit = max(_FEWEST, 2 * len(self._notes))
        self._notes[memory._cdata] = _Note(StorageWeakRef(memory), x.dtype, format, rounded, weight)


def tensors_in(values: Any) -> Iterator[torch.Tensor]:
    """Yield the tensors among arguments or results, of lists too."""
    if isinstance(values, torch.Tensor):
        yield values
    elif isinstance(values, (tuple, list)):
        for value in values:
            yield from tensors_in(value)
    elif isinstance(values, dict):
        yield from tensors_in(tuple(values.values()))


def _written(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Iterator[torch.Tensor]:
    if not func._schema.is_mutable:
        return
    for place, argument in enumerate(func._schema.arguments):
        if argument.alias_info is not None and argument.alias_info.is_write:
            yield from tensors_in(args[place] if place < len(args) else kwargs.get(argument.name))


def _memory(x: torch.Tensor | None) -> Any:
    """Return where values lie, of a packed tensor its codes; None of what has no memory of its own."""
    if isinstance(x, NarrowTensor):
        return _memory(x.pieces[0])
    while x is not None and torch._C._functorch.is_functorch_wrapped_tensor(x):
        x = torch._C._functorch.get_unwrapped(x)
    x = getattr(x, "_local_tensor", x)  # of a DTensor, which has none
    return None if x is None or x.layout != torch.strided else x.untyped_storage()


def _nbytes(x: torch.Tensor) -> int:
    memory = _memory(x)
    return 0 if memory is None else int(memory.nbytes())


def _unchanged(source: torch.Tensor, to: torch.Tensor) -> bool:
    """Whether a cast to a narrower dtype gave the same values."""
    back = to.to(source.dtype)
    return bool(((back == source) | source.isnan()).all())


def _narrower(a: str, b: str) -> str:
    found = narrowest((a, b))
    assert found is not None
    return found
