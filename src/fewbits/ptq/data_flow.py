"""The order in which data flows through the layers of a model, and the inputs of some of them."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from fewbits.errors import DataError

Batch = Tensor | Sequence[object] | Mapping[str, object]
Seen = Callable[[nn.Module, Tensor], Tensor | None]
"""Is shown a layer and its input; what it returns takes the place of the input, None leaves it."""


class Enough(Exception):  # noqa: N818 - a signal, no error
    """Ends a forward pass once all that was asked for is known."""


@dataclass
class Stage:
    """Layers that take the very same input, one after the other.

    Attributes:
        layers: their names, in the order of the calls.
        calls: how often a batch calls each of them.
        source: the layer whose output, untouched, is their input; None if there is none.
    """

    layers: list[str] = field(default_factory=list)
    calls: dict[str, int] = field(default_factory=dict)
    source: str | None = None


def call(model: nn.Module, batch: Batch) -> object:
    """Return what a model makes of a batch: one argument, a sequence of them, or a mapping by name."""
    if isinstance(batch, Mapping):
        return model(**batch)
    return model(*batch) if isinstance(batch, tuple | list) else model(batch)


def stages(model: nn.Module, layers: Mapping[str, nn.Module], batch: Batch) -> list[Stage]:
    """Run a batch, and return the layers that it reaches in the order of their first calls.

    Args:
        model: in the mode in which it will be used.
        layers: by name; a module has one name.
        batch: what the model takes.

    Raises:
        DataError: a layer's input is no tensor.
    """
    found: list[Stage] = []
    last: list[weakref.ref[Tensor] | None] = [None]
    made: dict[int, tuple[weakref.ref[Tensor], str]] = {}  # outputs of layers that still exist

    def before(name: str, x: Tensor) -> None:
        stage = next((s for s in found if name in s.layers), None)
        if stage is None:
            origin = made.get(id(x))
            source = origin[1] if origin is not None and origin[0]() is x else None
            if not (last[0] is not None and last[0]() is x):
                found.append(Stage(source=source))
            stage = found[-1]
            stage.layers.append(name)
        stage.calls[name] = stage.calls.get(name, 0) + 1
        last[0] = weakref.ref(x)

    def after(name: str, y: object) -> None:
        if isinstance(y, Tensor):
            made[id(y)] = (weakref.ref(y), name)

    names = {module: name for name, module in layers.items()}
    outputs = [m.register_forward_hook(lambda m, _, y: after(names[m], y)) for m in names]
    try:
        with inputs_seen(names, lambda m, x: before(names[m], x)), torch.no_grad():
            call(model, batch)
    finally:
        for handle in outputs:
            handle.remove()
    return found


def run_to(
    model: nn.Module, stage: Stage, modules: Mapping[str, nn.Module], batches: Sequence[Batch], seen: Seen
) -> Iterator[int]:
    """Run each batch as far as a stage, and show the input of each of its layers; yield how many are done."""
    waiting: dict[nn.Module, int] = {}
    names = {modules[name]: name for name in stage.layers}

    def count(module: nn.Module, x: Tensor) -> None:
        seen(module, x)
        waiting[module] -= 1
        if all(left <= 0 for left in waiting.values()):
            raise Enough

    with inputs_seen(names, count), torch.no_grad():
        for done, batch in enumerate(batches, 1):
            waiting.update({module: stage.calls[name] for module, name in names.items()})
            with suppress(Enough):
                call(model, batch)
            yield done


@contextmanager
def inputs_seen(modules: Mapping[nn.Module, str], seen: Seen) -> Iterator[None]:
    """Show the input of each module whenever it is called, before the call."""

    def hook(
        module: nn.Module, inputs: tuple[object, ...], named: dict[str, object]
    ) -> tuple[object, dict[str, object]] | None:
        x = inputs[0] if inputs else named.get("input", next(iter(named.values()), None))
        if not isinstance(x, Tensor):
            raise DataError(
                f"{modules[module]} was called with {type(x).__name__} as its input; expected a tensor:"
                " leave the layer out"
            )
        changed = seen(module, x)
        if changed is None:
            return None
        if inputs:
            return (changed, *inputs[1:]), named
        return (), {name: changed if value is x else value for name, value in named.items()}

    handles = [m.register_forward_pre_hook(hook, with_kwargs=True) for m in modules]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()
