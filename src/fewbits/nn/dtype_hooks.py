"""Modules that stay as they are, between layers whose results are 16-bit floats."""

from __future__ import annotations

import re
import sys
from collections.abc import Collection
from copy import copy
from dataclasses import fields, is_dataclass
from functools import partial
from itertools import chain
from typing import Any

import torch
from torch import nn
from torch.utils._pytree import tree_leaves, tree_map

from fewbits.nn.layer_precision import LayerPrecision

_NARROW = (torch.bfloat16, torch.float16)


def take_own_dtype(
    module: nn.Module,
    flowing: torch.dtype,
    *,
    result: bool = False,
    mixes_on_cpu: bool = False,
    bare_in_float32: bool = False,
) -> None:
    """Make ``module`` compute in the dtype of its own parameters or buffers, whichever floats flow to it.

    Torch mixes dtypes in few of its layers: a Linear of float32 refuses a bfloat16 input.

    Args:
        module: anything.
        flowing: the dtype of what flows between narrow layers.
        result: whether what it returns has that dtype; as the module has it by default.
        mixes_on_cpu: whether torch computes so itself on the CPU with float32 parameters, and refuses others.
        bare_in_float32: whether a module without such tensors computes in float32, as torch has no form of
            some functions for 16-bit floats; it takes what comes by default.
    """
    module.register_forward_pre_hook(
        partial(_enter, {*_NARROW, flowing}, mixes_on_cpu, bare_in_float32), with_kwargs=True
    )
    if result:
        module.register_forward_hook(partial(_leave, flowing))


class Float32Results:
    """Gives the 16-bit floats of a model's results as float32; hooks are copied and pickled with their model.

    Args:
        precision: whose observer sees the gradients of results that were float16.
    """

    def __init__(self, precision: LayerPrecision) -> None:
        self.precision = precision

    def __call__(self, module: nn.Module, inputs: object, tree: object) -> object:
        """Return the nested results."""
        return tree_map(self._of_leaf, tree)

    def _of_leaf(self, x: Any) -> Any:
        if is_dataclass(x) and not isinstance(x, type):  # to torch one of its own kind is no container
            x = copy(x)
            for name in (f.name for f in fields(x) if hasattr(x, f.name)):
                object.__setattr__(x, name, tree_map(self._of_leaf, getattr(x, name)))  # a frozen one too
            return x
        return self._widened(x) if _is(x, _NARROW) else x

    def _widened(self, x: torch.Tensor) -> torch.Tensor:
        wide = x.float()
        if self.precision.observer is not None and x.dtype == torch.float16 and wide.requires_grad:
            wide.register_hook(self._look)
        return wide

    def _look(self, gradient: torch.Tensor) -> None:
        self.precision.to_flow("result_gradient", gradient, torch.float16)


class Arrivals:
    """Shows an observer the float16 gradients that reach a layer; hooks are copied and pickled with it.

    Args:
        precision: those of the layer.
    """

    def __init__(self, precision: LayerPrecision) -> None:
        self.precision = precision

    def __call__(self, module: nn.Module, inputs: object, tree: object) -> None:
        """Observe the gradients of the nested results of a layer."""
        for x in tree_leaves(tree):
            if _is(x, (torch.float16,)) and x.requires_grad:
                x.register_hook(self._look)

    def _look(self, gradient: torch.Tensor) -> None:
        self.precision.report("arriving_gradient", gradient, gradient, -1)


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
    culprit: Any = model
    trace = error.__traceback__
    while trace is not None:
        inner = trace.tb_frame.f_locals.get("self")
        culprit = inner if id(inner) in names else culprit
        trace = trace.tb_next
    name = names[id(culprit)]
    error.args = (
        f"{name or 'the model'} ({type(culprit).__name__}) cannot compute with the 16-bit floats that flow"
        " between narrow layers, or not beside tensors of its own; let float32 flow (vector=fp32 in the"
        " recipe)"
        + (f" or leave it as it is with exclude={name!r}" if name else "")
        + f". PyTorch says: {error}",
    )


# What PyTorch says of tensors of different types.
_DTYPES = re.compile(r"dtype|scalar type|type mismatch|(?:Half|BFloat16|Float)\b")


def _enter(
    given: set[torch.dtype], mixes_on_cpu: bool, bare: bool, module: nn.Module, args: Any, options: Any
) -> Any:
    own = chain(module.parameters(), module.buffers())
    first = next((x for x in own if x.is_floating_point()), None)
    if first is None and not bare:
        return None
    if first is not None and mixes_on_cpu and first.is_cpu and first.dtype == torch.float32:
        return None
    dtype = torch.float32 if first is None else first.dtype
    return tree_map(lambda x: x.to(dtype) if _is(x, given) else x, (args, options))


def _leave(dtype: torch.dtype, module: nn.Module, args: Any, tree: Any) -> Any:
    return tree_map(lambda x: x.to(dtype) if _is(x, (*_NARROW, torch.float32)) else x, tree)


def _is(x: Any, dtypes: Collection[torch.dtype]) -> bool:
    return isinstance(x, torch.Tensor) and x.dtype in dtypes
