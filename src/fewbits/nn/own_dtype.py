"""Modules that stay as they are, between layers whose results are 16-bit floats."""

from __future__ import annotations

import re
import sys
from functools import partial
from typing import Any

import torch
from torch import nn
from torch.utils._pytree import tree_map

_NARROW = (torch.bfloat16, torch.float16)


def take_own_dtype(module: nn.Module, result: torch.dtype | None = None) -> None:
    """Make ``module`` compute in the dtype of its own parameters, whichever 16-bit floats it is given.

    Torch mixes dtypes in few of its layers: a Linear of float32 refuses a bfloat16 input.

    Args:
        module: anything; without floating-point parameters nothing happens to its inputs.
        result: the dtype of what it returns; as the module has it by default.
    """
    module.register_forward_pre_hook(_enter, with_kwargs=True)
    if result is not None:
        module.register_forward_hook(partial(_leave, result))


def widened(tree: Any) -> Any:
    """Return nested results with their 16-bit floats as float32."""
    return tree_map(lambda x: x.float() if _is(x, _NARROW) else x, tree)


def explain_dtypes(model: nn.Module) -> None:
    """Say in words, where a forward pass fails over dtypes, which module mixed them and what helps."""
    model.register_forward_hook(_explain, always_call=True)


def _explain(model: nn.Module, *_: Any) -> None:
    if torch.compiler.is_compiling():
        return
    error = sys.exc_info()[1]
    if not isinstance(error, (RuntimeError, TypeError, ValueError)) or not _DTYPES.search(str(error)):
        return
    names: dict[int, str] = {id(m): name for name, m in model.named_modules()}
    found: Any = model
    trace = error.__traceback__
    while trace is not None:
        inner = trace.tb_frame.f_locals.get("self")
        found = inner if id(inner) in names else found
        trace = trace.tb_next
    name = names[id(found)]
    error.args = (
        f"{name or 'the model'} ({type(found).__name__}) computes with tensors of its own beside the 16-bit"
        " floats that flow between narrow layers; let float32 flow (vector=fp32 in the recipe)"
        + (f" or leave it as it is with exclude={name!r}" if name else "")
        + f". PyTorch says: {error}",
    )


# What PyTorch says of tensors of different types.
_DTYPES = re.compile(r"dtype|scalar type|type mismatch|(?:Half|BFloat16|Float)\b")


def _enter(module: nn.Module, args: Any, options: Any) -> Any:
    dtype = next((p.dtype for p in module.parameters() if p.is_floating_point()), None)
    if dtype is None:
        return None
    return tree_map(lambda x: x.to(dtype) if _is(x, _NARROW) else x, (args, options))


def _leave(dtype: torch.dtype, module: nn.Module, args: Any, tree: Any) -> Any:
    return tree_map(lambda x: x.to(dtype) if _is(x, (*_NARROW, torch.float32)) else x, tree)


def _is(x: Any, dtypes: tuple[torch.dtype, ...]) -> bool:
    return isinstance(x, torch.Tensor) and x.dtype in dtypes
