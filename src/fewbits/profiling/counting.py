"""The bytes and the arithmetic of each operation of a step, counted as PyTorch dispatches it.

A pass of its own, without a clock: the profiler records the shapes of operands and neither their dtypes nor
results. Both see the same calls in the same order, so that one finds the other by name and shapes.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from fewbits.errors import ArgumentError
from fewbits.products import call_flops, stored_values

Shapes = tuple[tuple[int, ...], ...]
Key = tuple[str, Shapes]

# What they return was not touched yet, or is an operand as it lies.
_UNTOUCHED = {
    f"aten::{name}"
    for name in (
        "empty", "empty_like", "empty_strided", "new_empty", "new_empty_strided", "resize_", "_unsafe_view",
        "lift_fresh", "detach", "set_",
    )
}  # fmt: skip
_ONLY_WRITE = {
    f"aten::{name}" for name in ("copy_", "fill_", "zero_", "normal_", "uniform_", "random_", "bernoulli_")
}
# Of the first operand they read no more than they return.
_TAKE_PART = {f"aten::{name}" for name in ("embedding", "index", "index_select", "gather", "take")}
# Of the first operand they read a row for each index.
_SUM_ROWS = ("aten::_embedding_bag", "aten::_embedding_bag_forward_only")
# They write to a part of the first operand, and where they add to it, they read that part.
_INTO_ROWS = ("index_add_", "index_copy_", "index_fill_", "index_reduce_")  # operand, axis, index
_INTO_VALUES = ("scatter_", "scatter_add_", "scatter_reduce_")  # operand, axis, index of each value
_INTO_INDEXED = ("index_put_", "_index_put_impl_")  # operand, indices of axes, values, whether it adds
_ROUNDED_OPTIONS = (4, 5)  # arguments of fewbits::rounded_product: how it rounds its operands; "": not at all
_QUANTIZED_AXIS = ("fewbits::fake_quantize", "fewbits::quantize")
_COMPOSITE = torch._C.DispatchKey.CompositeImplicitAutograd
_PRODUCTS = ("aten::matmul", "aten::linear")  # composite, and counted as they are
_COPIES = ("aten::copy_", "aten::clone", "aten::_to_copy", "aten::contiguous")


@dataclass(frozen=True)
class Count:
    """What one call moves and computes."""

    read_bytes: float
    written_bytes: float
    flops: float
    is_product: bool  # flops are those of multiplications and additions
    dtype: str  # of the widest floating-point operand; of a product of integers theirs
    narrows: bool  # the result is floating point with fewer bits than the operand
    rounds_inside: bool
    strided: bool

    @property
    def moved_bytes(self) -> float:
        """Operands and results."""
        return self.read_bytes + self.written_bytes


class Counter(TorchDispatchMode):
    """Counts what runs while it is active.

    Attributes:
        counts: of each call, in the order of calls with the same name and shapes.
    """

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # torch gives it no types
        self.counts: dict[Key, list[Count]] = {}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Count a call.

        Raises:
            ArgumentError: a tensor is on another device than the CPU, or nested.
        """
        if any(t is not torch.Tensor and t is not torch.nn.Parameter for t in types):
            return NotImplemented  # a subclass unpacks itself; what it then calls is counted
        kwargs = kwargs or {}
        _refuse_nested((args, kwargs))
        # Below autograd and in inference mode operators come whole that autograd takes apart.
        if func.has_kernel_for_dispatch_key(_COMPOSITE) and func._schema.name not in _PRODUCTS:
            with self:
                return func.decompose(*args, **kwargs)
        result = func(*args, **kwargs)
        _refuse_nested(result)
        # As the profiler has them: nothing of numbers, nor of lists of tensors.
        given = (x for x in (*args, *kwargs.values()) if isinstance(x, torch.Tensor))
        shapes = tuple(tuple(x.shape) for x in given if x.ndim)
        name = func._schema.name
        self.counts.setdefault((name, shapes), []).append(count(func, args, kwargs, result))
        return result


def uncompiled() -> AbstractContextManager[Any]:
    """Return within what compiled code runs as it was written, so that its operations can be counted.

    Else PyTorch would give up on code that it meets while calls are counted, and never run it compiled again.
    """
    if "torch._dynamo" not in sys.modules:  # nothing is compiled, and it takes seconds to import
        return nullcontext()
    eager: AbstractContextManager[Any] = torch.compiler.set_stance("force_eager")
    return eager


def count(func: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any], result: Any) -> Count:
    """Return what a call of an operator moves and computes.

    Bytes are those of operands and results as they lie in memory: of packed operands the packed ones, of an
    expanded tensor those that are there. FLOPs of products are those of `fewbits.products`; of what is no
    product, one for each value of the largest operand or result, where a list of tensors is one and where
    what is not touched does not count.

    Raises:
        ArgumentError: a tensor is on another device than the CPU.
    """
    name = func._schema.name
    operands, results = list(_tensors((args, kwargs))), list(_tensors(result))
    refuse_devices((*operands, *results))
    reads = sum(map(_memory, operands))
    writes = sum(map(_memory, results))
    part, looked_up = _written_part(name, args, kwargs), _looked_up(name, args, result)
    if name in _UNTOUCHED or func.is_view:
        reads = writes = 0.0
    elif name in _ONLY_WRITE:
        reads -= _memory(operands[0])
    elif looked_up is not None:
        reads -= max(_memory(operands[0]) - looked_up * operands[0].element_size(), 0.0)
    elif part is not None:
        reads -= _memory(operands[0]) - part[0] * operands[0].element_size()
        writes = part[1] * operands[0].element_size()
    elif not results:  # in place, as _foreach_mul_: what is written is no result
        writes = sum(
            _memory(x)
            for argument, value in zip(func._schema.arguments, args, strict=False)
            if argument.alias_info is not None and argument.alias_info.is_write
            for x in _tensors(value)
        )
    product = call_flops(func, args, kwargs, result)
    if part is not None:
        values = part[1]
    elif looked_up is not None:
        values = looked_up
    else:
        made = result if isinstance(result, tuple) else (result,)
        values = max(map(_values, (*args, *kwargs.values(), *made)), default=0) if reads + writes else 0
    floats = [x for x in operands if x.is_floating_point() or x.is_complex()]
    if product is not None and not floats and name.startswith("aten::"):
        floats = operands[:1]
    wide = max(floats, key=lambda x: x.itemsize, default=None)
    source = operands[1:2] if name == "aten::copy_" else operands[:1]
    return Count(
        read_bytes=reads,
        written_bytes=writes,
        flops=float(values if product is None else product),
        is_product=product is not None,
        dtype="" if wide is None else str(wide.dtype).removeprefix("torch."),
        narrows=bool(source and results and _narrows(source[0], results[0])),
        rounds_inside=name == "fewbits::rounded_product" and any(args[i] for i in _ROUNDED_OPTIONS),
        strided=product is None and bool(operands) and _is_strided(name, source, results, args),
    )


def refuse_devices(tensors: Iterable[Any]) -> None:
    """Raise ArgumentError where a tensor is on another device than the CPU, whose time nobody measures."""
    for x in tensors:
        if x.device.type not in ("cpu", "meta"):
            raise ArgumentError(
                f"the step computes on {x.device}, and its time is measured on the CPU; move model and data"
                " there, or use torch.profiler"
            )


def _refuse_nested(values: Any) -> None:
    """Raise ArgumentError where a tensor has no shape: nobody knows what an operator of it computes."""
    if any(x.is_nested for x in _tensors(values)):
        raise ArgumentError(
            "the step makes nested tensors, whose operations cannot be counted; pad them"
            " (nn.TransformerEncoder: enable_nested_tensor=False)"
        )


def _tensors(value: Any) -> Iterator[torch.Tensor]:
    return (leaf for leaf in tree_leaves(value) if isinstance(leaf, torch.Tensor))


def _values(argument: Any) -> int:
    """Return the values of an argument or a result: of a list those of all its tensors."""
    return sum(map(stored_values, _tensors(argument)))


def _memory(x: torch.Tensor) -> float:
    """Return the bytes that the values of a tensor take; those of an expanded axis lie there once.

    Of a sparse one, values and indices.
    """
    if x.layout == torch.sparse_coo:
        return _memory(x._indices()) + _memory(x._values())
    if x.layout in (torch.sparse_csr, torch.sparse_bsr):
        return sum(map(_memory, (x.crow_indices(), x.col_indices(), x.values())))
    if x.layout in (torch.sparse_csc, torch.sparse_bsc):
        return sum(map(_memory, (x.ccol_indices(), x.row_indices(), x.values())))
    if x.layout != torch.strided:
        return float(x.numel() * x.element_size())
    there = [n for n, step in zip(x.shape, x.stride(), strict=True) if step or n == 0]
    return float(math.prod(there) * x.element_size())


def _looked_up(name: str, args: Any, result: Any) -> int | None:
    """Return how many values of its first operand a look-up reads; None of others."""
    if name in _SUM_ROWS:
        return int(args[1].numel() * math.prod(args[0].shape[1:]))
    return _values(result) if name in _TAKE_PART else None


def _written_part(name: str, args: Any, kwargs: Mapping[str, Any]) -> tuple[int, int] | None:
    """Return how many values of its first operand a scattering operator reads and writes; None of others."""
    short = name.removeprefix("aten::")
    if short in _INTO_ROWS:
        rows = args[0].shape[args[1]] if args[0].ndim else 1
        written = args[2].numel() * args[0].numel() // max(rows, 1)
        adds = short in ("index_add_", "index_reduce_")
    elif short in _INTO_VALUES:
        written, adds = args[2].numel(), short != "scatter_" or "reduce" in kwargs or len(args) > 4
    elif short == "put_":  # operand, index, values, whether it adds
        written, adds = args[1].numel(), bool(kwargs.get("accumulate", len(args) > 3 and args[3]))
    elif short == "embedding_renorm_":  # operand, index: rows are read, and those too long written
        written, adds = args[1].numel() * math.prod(args[0].shape[1:]), True
    elif short in _INTO_INDEXED:
        written = torch.ops.aten.index(args[0], args[1]).numel()
        adds = bool(kwargs.get("accumulate", len(args) > 3 and args[3]))
    else:
        return None
    return written * adds, written


def _narrows(x: torch.Tensor, y: torch.Tensor) -> bool:
    return x.is_floating_point() and y.is_floating_point() and y.itemsize < x.itemsize


def _is_strided(name: str, read: list[torch.Tensor], results: list[torch.Tensor], args: Any) -> bool:
    """Return whether an operator reads across the axis along which values lie, or rounds across it."""
    if not read:
        return False
    x = read[0]
    if name in _QUANTIZED_AXIS and len(args) > 1 and isinstance(args[1], int):
        return x.ndim > 1 and x.shape[-1] > 1 and args[1] % x.ndim != x.ndim - 1
    if any(t.layout != torch.strided for t in (x, *results)):
        return False
    if name in _COPIES and results:
        order = _order(x.expand_as(results[0]))
        return order != [axis for axis in _order(results[0]) if axis in order]
    return not _is_dense(x)


def _order(x: torch.Tensor) -> list[int]:
    """Return the axes of a tensor, the one along which values lie last; none of a single value."""
    steps = x.stride()
    axes = [axis for axis, size in enumerate(x.shape) if size > 1 and steps[axis]]
    return sorted(axes, key=lambda axis: -steps[axis])


def _is_dense(x: torch.Tensor) -> bool:
    """Return whether the values of a tensor lie one after the other, in whatever order of its axes."""
    expected = 1
    for axis in reversed(_order(x)):
        if x.stride(axis) != expected:
            return False
        expected *= x.shape[axis]
    return True
