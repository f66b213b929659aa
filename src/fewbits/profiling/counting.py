"""The bytes and the arithmetic of each operation of a step, counted as PyTorch dispatches it.

A pass of its own, without a clock: the profiler records the shapes of operands and neither their dtypes nor
results. Both see the same calls in the same order, so that one finds the other by name and shapes.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.flop_counter import flop_registry, sdpa_backward_flop_count, sdpa_flop_count

from fewbits.errors import ArgumentError

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
_TAKE_PART = {f"aten::{name}" for name in ("embedding", "index", "index_select", "gather")}
_ROUNDED_OPTIONS = (4, 5)  # arguments of fewbits::rounded_product: how it rounds its operands; "": not at all
_QUANTIZED_AXIS = ("fewbits::fake_quantize", "fewbits::quantize")
_FLASH = "aten::_scaled_dot_product_flash_attention_for_cpu"


@dataclass(frozen=True)
class Count:
    """What one call moves and computes."""

    read_bytes: float
    written_bytes: float
    flops: float
    is_product: bool  # flops are those of multiplications and additions
    dtype: str  # of the widest floating-point operand
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
            ArgumentError: a tensor is on another device than the CPU.
        """
        if any(t is not torch.Tensor and t is not torch.nn.Parameter for t in types):
            return NotImplemented  # a subclass unpacks itself; what it then calls is counted
        kwargs = kwargs or {}
        result = func(*args, **kwargs)
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
    return torch.compiler.set_stance("force_eager")


def count(func: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any], result: Any) -> Count:
    """Return what a call of an operator moves and computes.

    Bytes are those of operands and results as they lie in memory: of packed operands the packed ones, of an
    expanded tensor those that are there. FLOPs of products, convolutions and attention are PyTorch's own
    formulas, `torch.utils.flop_counter`; of what they have none for, one for each value.

    Raises:
        ArgumentError: a tensor is on another device than the CPU.
    """
    name = func._schema.name
    operands, results = list(_tensors((args, kwargs))), list(_tensors(result))
    refuse_devices((*operands, *results))
    reads = sum(map(_memory, operands))
    writes = sum(map(_memory, results))
    if name in _UNTOUCHED or func.is_view:
        reads = writes = 0.0
    elif name in _ONLY_WRITE:
        reads -= _memory(operands[0])
    elif name in _TAKE_PART:
        reads -= max(_memory(operands[0]) - writes, 0.0)
    elif not results:  # in place, as _foreach_mul_: what is written is no result
        writes = sum(
            _memory(x)
            for argument, value in zip(func._schema.arguments, args, strict=False)
            if argument.alias_info is not None and argument.alias_info.is_write
            for x in _tensors(value)
        )
    product = _product_flops(func, args, kwargs, result)
    values = max((x.numel() for x in (*operands, *results)), default=0) if reads + writes else 0
    floats = [x for x in operands if x.is_floating_point()]
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
        strided=product is None and bool(operands) and _is_strided(name, operands[0], args),
    )


def refuse_devices(tensors: Iterable[Any]) -> None:
    """Raise ArgumentError where a tensor is on another device than the CPU, whose time nobody measures."""
    for x in tensors:
        if x.device.type not in ("cpu", "meta"):
            raise ArgumentError(
                f"the step computes on {x.device}, and its time is measured on the CPU; move model and data"
                " there, or use torch.profiler"
            )


def _tensors(value: Any) -> Iterator[torch.Tensor]:
    return (leaf for leaf in tree_leaves(value) if isinstance(leaf, torch.Tensor))


def _memory(x: torch.Tensor) -> float:
    """Return the bytes that the values of a tensor take; those of an expanded axis lie there once."""
    there = [n for n, step in zip(x.shape, x.stride(), strict=True) if step or n == 0]
    return float(math.prod(there) * x.element_size())


def _narrows(x: torch.Tensor, y: torch.Tensor) -> bool:
    return x.is_floating_point() and y.is_floating_point() and y.itemsize < x.itemsize


def _is_strided(name: str, x: torch.Tensor, args: tuple[Any, ...]) -> bool:
    if name in _QUANTIZED_AXIS and len(args) > 1 and isinstance(args[1], int):
        return x.ndim > 1 and x.shape[-1] > 1 and args[1] % x.ndim != x.ndim - 1
    return not x.is_contiguous()


def _product_flops(func: Any, args: Any, kwargs: Any, result: Any) -> float | None:
    formula = flop_registry.get(func._overloadpacket)
    if formula is not None:
        return float(formula(*args, **kwargs, out_val=result))
    own = _FORMULAS.get(func._schema.name)
    return None if own is None else float(own(args, result))


def _times(args: Any, result: Any) -> float:
    """Return the FLOP of a product of matrices, or of stacks of them."""
    return float(2 * result.numel() * args[0].shape[-1])


def _convolved(args: Any, result: Any) -> float:
    """Return the FLOP of a convolution of x and weight: each result sums a window of weights."""
    return float(2 * result.numel() * args[1][0].numel())


def _recurrent(args: Any, result: Any) -> float:
    """Return the FLOP of a layer of an LSTM: each step multiplies by the weights of inputs and of states."""
    x, of_inputs, of_states = args[:3]
    steps = math.prod(x.shape[:2])
    return float(2 * steps * (of_inputs.numel() + of_states.numel()))


_FORMULAS: dict[str, Callable[[Any, Any], float]] = {
    "fewbits::rounded_product": _times,
    "fewbits::bfloat16_product": _times,
    "fewbits::addition_product": _times,
    "fewbits::gemv": _times,
    "fewbits::gemv_int8": _times,
    "aten::dot": _times,
    "aten::mv": _times,
    "aten::mkldnn_convolution": _convolved,
    "aten::mkldnn_rnn_layer": _recurrent,
    "aten::mkldnn_rnn_layer_backward": lambda args, result: 2 * _recurrent(args, result),
    _FLASH: lambda args, result: sdpa_flop_count(*(x.shape for x in args[:3])),
    f"{_FLASH}_backward": lambda args, result: sdpa_backward_flop_count(*(x.shape for x in args[:4])),
}
