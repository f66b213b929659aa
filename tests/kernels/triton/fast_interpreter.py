"""Makes Triton's interpreter take half its time: what it does anew at each call, once for each launch."""

from typing import Any

from triton.runtime import interpreter
from triton.runtime.interpreter import (
    GridExecutor,
    InterpretedFunction,
    InterpreterOptions,
    interpreter_builder,
)

# A third of the time goes to a search for overflow, which only the words of Threefry have, on purpose.
interpreter_builder.options = InterpreterOptions(sanitize_overflow=False)
# Triton makes its language interpreted anew for each call of a function from another, a third of all work.
# Once for each module in a launch is enough: a launch takes back what it changed when it ends.
_ready: set[str] = set()
_launch = GridExecutor.__call__


def _launched(self: GridExecutor, *args: Any, **kwargs: Any) -> None:
    _ready.clear()
    _launch(self, *args, **kwargs)


def _called(self: InterpretedFunction[Any], *args: Any, **kwargs: Any) -> Any:
    if self.fn.__module__ not in _ready:
        interpreter._patch_lang(self.fn)
        _ready.add(self.fn.__module__)
    return self.rewrite()(*args, **kwargs)


GridExecutor.__call__ = _launched
InterpretedFunction.__call__ = _called
