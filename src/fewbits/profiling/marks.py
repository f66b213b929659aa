"""Marks in a trace: which module runs, and which part of a step."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from typing import Any, ParamSpec, TypeVar

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
    """Mark the forward pass of every module, by its name in the outermost one that is called."""
    running: list[record_function] = []
    names: dict[int, str] = {}

    def begin(module: nn.Module, _: Any) -> None:
        if not running:
            names.clear()
            names.update((id(m), name) for name, m in module.named_modules())
        name = names.get(id(module)) or type(module).__name__
        mark = record_function(LAYER + name)
        mark.__enter__()
        running.append(mark)

    def end(*_: Any) -> None:
        running.pop().__exit__(None, None, None)

    hooks = register_module_forward_pre_hook(begin), register_module_forward_hook(end, always_call=True)
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()
