"""The torch operations that packed tensors support, and an error for all others."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from fewbits.errors import ArgumentError
from fewbits.kernels.ops.at_once import PLAIN
from fewbits.kernels.ops.direct import is_ordinary, is_recorded
from fewbits.tensor.narrow.vectors import times_lines

Table = dict[Any, Callable[..., Any]]

VIEWS: Table = {}  # the result shares bytes with the argument
COMPUTED: Table = {}


def matmul(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """Return ``a @ b``, one of them packed; without torch's dispatcher where it would do no more."""
    x, q = (a, b) if type(a) in PLAIN else (b, a)
    if type(x) in PLAIN and not torch.is_autocast_enabled("cpu"):
        y = times_lines(a, b, 0) if x is a else None
        if y is not None:
            return y
        if not is_recorded(x) and is_ordinary(x, q.codes):  # type: ignore[attr-defined]  # q is a NarrowTensor
            found: torch.Tensor = COMPUTED[torch.ops.aten.matmul.default](a, b)
            return found
    return torch.matmul(a, b)


def run(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Return the result of an operation that has a NarrowTensor among its arguments.

    Raises:
        ArgumentError: the operation is not in the table and cannot be decomposed into ones that are.
    """
    view = VIEWS.get(func)
    if view is not None:
        # Storages of wrappers stay apart: torch.compile would take a view of one for as_strided of the other,
        # and returns the parts of a packed tensor, which share their memory, by themselves.
        if not torch.is_inference_mode_enabled():
            return view(*args, **kwargs)
        # In inference mode a view of an ordinary tensor is an ordinary tensor: torch counts its versions.
        with torch.inference_mode(args[0].is_inference()):
            return view(*args, **kwargs)
    computed = COMPUTED.get(func)
    if computed is not None:
        return computed(*args, **kwargs)
    found = func.decompose(*args, **kwargs)
    if found is NotImplemented:
        raise refusal(func)
    return found


def refusal(func: Any) -> ArgumentError:
    """Return the error of an operation that would need the values of a NarrowTensor."""
    # Not a TypeError: operators then try the other operand, and == would fall back to comparing identities.
    return ArgumentError(
        f"{func} needs the values of a NarrowTensor, which are packed: call .dequantize() first"
        + (", or compare with torch.equal" if func is torch.ops.aten.eq.Tensor else "")
    )
