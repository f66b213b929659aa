"""What torch.compile has to know of functions and properties that it meets while it traces; no torch here."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, TypeVar

_Function = TypeVar("_Function", bound=Callable[..., Any])
_Value = TypeVar("_Value")


def constant_in_graphs(function: _Function) -> _Function:
    """Have torch.compile call ``function`` while it traces and take the result for a constant.

    This is the mark that torch.compiler.assume_constant_result sets, which imports the compiler first, for a
    second.
    """
    function._dynamo_marked_constant = True  # type: ignore[attr-defined]  # a mark on a function
    return function


def outside_of_graphs(function: _Function) -> _Function:
    """Have torch.compile end its graph where ``function`` is called, and begin another one behind.

    This is the mark that torch.compiler.disable sets, which imports the compiler, too.
    """
    function._torchdynamo_disable = True  # type: ignore[attr-defined]  # a mark on a function
    return function


class cached_property(functools.cached_property[_Value]):  # noqa: N801  # as the one that it replaces
    """The functools.cached_property of Python 3.12, everywhere: without a lock, which no graph can hold."""

    def __get__(self, instance: Any, owner: type[Any] | None = None) -> Any:
        """Return the value of ``instance``, which later calls find in place of this property."""
        if instance is None:
            return self
        value = instance.__dict__[self.attrname] = self.func(instance)
        return value
