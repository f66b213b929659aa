"""Marks in a trace: which module runs, and which part of a step."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from typing import Any, ParamSpec, TypeVar

import torch
from torch import nn
from torch.autograd.profiler import record_function
from torch.nn.modules.module import register_module_forward_hook, register_module_forward_pre_hook

P = ParamSpec("P")
R = TypeVar("R")

STEP = "fewbits profile: step"
LAYER = "fewbits profile: layer "  # and the name of the module
PART = "fewbits profile: part "  # and a class of time


def marked(kind: str, function: Callable[P, R]) -> Callable[P, R]:
    """Return a function whose time is of a class."""

    @wraps(function)
    def called(*args: P.args, **kwargs: P.kwargs) -> R:
        with record_function(PART + kind):
            return function(*args, **kwargs)

    return called


@contextmanager
def marked_modules() -> Iterator[None]:
    """Mark the forward pass of every module, by its name in the outermost one that is called.

    Those inside of compiled code are not marked: a mark would break its graph, and compile it in each step.
    """
    running: list[record_function] = []
    names: dict[int, str] = {}

    def begin(module: nn.Module, _: Any) -> None:
        if torch.compiler.is_compiling():  # true in what is traced and in what becomes of it
            return
        if not running:
            names.clear()
            names.update((id(m), name) for name, m in module.named_modules())
        name = names.get(id(module)) or type(module).__name__
        mark = record_function(LAYER + name)
        mark.__enter__()
        running.append(mark)

    def end(*_: Any) -> None:
        if torch.compiler.is_compiling():
            return
        running.pop().__exit__(None, None, None)

    hooks = register_module_forward_pre_hook(begin), register_module_forward_hook(end, always_call=True)
    try:
        with warnings.catch_warnings():  # that a compiled module is marked beside the one inside of it
            warnings.filterwarnings("ignore", r"Using `torch\.compile\(module\)` when there are global hooks")
            yield
    finally:
        for hook in hooks:
            hook.remove()
