"""Marks by which an optimizer knows the parameters that :func:`prepare` rounded, and their values before."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any
from weakref import WeakSet, ref

from fewbits.kernels.ops.sharding import is_sharded

if TYPE_CHECKING:
    import torch
    from torch import nn

_ROUNDED = "fewbits_rounded"
_UNROUNDED = "fewbits_unrounded"
_LOOKED_FOR = "fewbits_looked_for"


class Marks:
    """Marks the parameters of a module, those of its copies, and those that took their place when sharded.

    Copies of a parameter, and the parts of it that fully_shard gives each process, have none of its
    attributes. The module keeps this and copies it, and it finds them by the module.
    """

    def __init__(self, module: nn.Module) -> None:
        self.module = ref(module)
        _LIVE.add(self)
        _NEW.add(self)

    def mark(self, *, sharded: bool = False) -> None:
        """Mark the parameters of the module; with ``sharded`` only sharded ones without a mark."""
        module = self.module()
        for name, p in () if module is None else self.parameters(module):
            if not sharded or (is_sharded(p) and not hasattr(p, self.attribute)):
                self.set(name, p)

    attribute: str

    def parameters(self, module: nn.Module) -> Iterable[tuple[str, torch.Tensor]]:
        """Return the parameters that are marked, and their names."""
        raise NotImplementedError

    def set(self, name: str, p: torch.Tensor) -> None:
        """Mark one parameter."""
        raise NotImplementedError


# Of modules that are alive, and of those the ones that were not asked for yet.
_LIVE: WeakSet[Marks] = WeakSet()
_NEW: WeakSet[Marks] = WeakSet()


def set_pending() -> None:
    """Set the marks of modules that were not asked for yet."""
    while _NEW:
        _NEW.pop().mark()


def find_marks(p: torch.Tensor) -> None:
    """Set the marks of a parameter that are still pending, as those of a new or sharded model are."""
    set_pending()
    if is_sharded(p) and not hasattr(p, _LOOKED_FOR):
        setattr(p, _LOOKED_FOR, True)
        for marks in tuple(_LIVE):
            marks.mark(sharded=True)


class RoundedParameters(Marks):
    """Says which parameters of a layer were rounded, and what they were before.

    Args:
        layer: whose parameters are all rounded, those of modules in it too.
        unrounded: by name, what each was before, for a master copy, where somebody will ask.
    """

    attribute = _ROUNDED

    def __init__(self, layer: nn.Module, unrounded: dict[str, torch.Tensor]) -> None:
        self.unrounded = unrounded
        super().__init__(layer)

    def parameters(self, module: nn.Module) -> Iterable[tuple[str, torch.Tensor]]:
        """Return the layer's, with those of modules in it."""
        return module.named_parameters()

    def new(self, module: nn.Module) -> list[tuple[str, torch.Tensor]]:
        """Return the parameters without a mark, which took the place of others."""
        return [(name, p) for name, p in self.parameters(module) if not hasattr(p, _ROUNDED)]

    def set(self, name: str, p: torch.Tensor) -> None:
        """Mark one parameter."""
        setattr(p, _ROUNDED, True)
        if name in self.unrounded:
            setattr(p, _UNROUNDED, (self.unrounded, name))

    def __reduce__(self) -> tuple[Any, ...]:
        """Return what copies and pickles are made of."""
        return RoundedParameters, (self.module(), self.unrounded)


def is_rounded(p: torch.Tensor) -> bool:
    """Whether a parameter was rounded to a format when its model was prepared."""
    find_marks(p)
    return getattr(p, _ROUNDED, False)


def take_unrounded(p: torch.Tensor) -> torch.Tensor | None:
    """Return the full values of a parameter before rounding, once; None if they are unknown."""
    find_marks(p)
    unrounded, name = p.__dict__.pop(_UNROUNDED, ({}, ""))
    values: torch.Tensor | None = unrounded.pop(name, None)
    return values
