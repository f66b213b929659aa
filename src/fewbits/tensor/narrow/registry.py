"""The torch operations that packed tensors support, and an error for all others."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.utils._python_dispatch import return_and_correct_aliasing

from fewbits.errors import ArgumentError

Table = dict[Any, Callable[..., Any]]

VIEWS: Table = {}  # the result shares bytes with the argument
COMPUTED: Table = {}


def run(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Return the result of an operation that has a NarrowTensor among its arguments.

    Raises:
        ArgumentError: the operation is not in the table and cannot be decomposed into ones that are.
    """
    if func in VIEWS:
        # In inference mode a view of an ordinary tensor is an ordinary tensor: torch counts its versions.
        with torch.inference_mode(torch.is_inference_mode_enabled() and args[0].is_inference()):
            found = VIEWS[func](*args, **kwargs)
        return return_and_correct_aliasing(func, args, kwargs, found)
    if func in COMPUTED:
        return COMPUTED[func](*args, **kwargs)
    found = func.decompose(*args, **kwargs)
    if found is NotImplemented:
        # Not a TypeError: operators then try the other operand, and == would fall back to comparing
        # identities.
        raise ArgumentError(
            f"{func} needs the values of a NarrowTensor, which are packed: call .dequantize() first"
            + (", or compare with torch.equal" if func is torch.ops.aten.eq.Tensor else "")
        )
    return found
