"""What a prepared model tells an optimizer about its parameters: which are narrow, what they were."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any
from weakref import WeakSet, ref

from fewbits.kernels.ops.sharding import is_sharded

if TYPE_CHECKING:
    import torch
    from torch import nn

    from fewbits.recipes.recipe import Recipe

_NARROW = "fewbits_narrow"
_WIDE = "fewbits_wide"
_RECIPE = "fewbits_recipe"
_LOOKED_FOR = "fewbits_looked_for"


class _Marks:
    """Marks the parameters of a module, those of its copies, and those that took their place when sharded.

    Copies of a parameter, and the parts of it that fully_shard gives each process, have none of its
    attributes. The module keeps this and copies it, and it finds them by the module.
    """

    def __init__(self, module: nn.Module) -> None:
        self.module = ref(module)
        _LIVE.add(self)
        _NEW.add(self)

    def mark(self, *, sharded: bool = False) -> None:
        """Mark what the module has now; or of that, what is sharded and was not marked."""
        module = self.module()
        for name, p in () if module is None else self.parameters(module):
            if not sharded or (is_sharded(p) and not hasattr(p, self.attribute)):
                self.set(name, p)

    attribute: str

    def parameters(self, module: nn.Module) -> Iterable[tuple[str, torch.Tensor]]:
        raise NotImplementedError

    def set(self, name: str, p: torch.Tensor) -> None:
        raise NotImplementedError


# Of modules that are alive, and of those the ones that were not asked for yet.
_LIVE: WeakSet[_Marks] = WeakSet()
_NEW: WeakSet[_Marks] = WeakSet()


def _find_marks(p: torch.Tensor) -> None:
    """Let a parameter have its marks, if it has any."""
    while _NEW:
        _NEW.pop().mark()
    if is_sharded(p) and not hasattr(p, _LOOKED_FOR):
        setattr(p, _LOOKED_FOR, True)
        for marks in tuple(_LIVE):
            marks.mark(sharded=True)


class Narrowed(_Marks):
    """Says which parameters of a layer are narrow, and what they were before.

    Args:
        layer: whose parameters are all narrow, those of modules in it too.
        wide: by name, what each was before, for a master copy, where somebody will ask.
    """

    attribute = _NARROW

    def __init__(self, layer: nn.Module, wide: dict[str, torch.Tensor]) -> None:
        self.wide = wide
        super().__init__(layer)

    def parameters(self, module: nn.Module) -> Iterable[tuple[str, torch.Tensor]]:
        """Return the layer's, with those of modules in it."""
        return module.named_parameters()

    def set(self, name: str, p: torch.Tensor) -> None:
        """Mark one parameter."""
        setattr(p, _NARROW, True)
        if name in self.wide:
            setattr(p, _WIDE, (self.wide, name))

    def __reduce__(self) -> tuple[Any, ...]:
        """Return what copies and pickles are made of."""
        return Narrowed, (self.module(), self.wide)


class Prepared(_Marks):
    """Says what recipe the parameters of a module follow.

    Args:
        module: whose own parameters are meant.
        recipe: that the model was prepared with.
    """

    attribute = _RECIPE

    def __init__(self, module: nn.Module, recipe: Recipe) -> None:
        from fewbits.recipes.agreement import look_before_steps

        self.recipe = recipe
        super().__init__(module)
        look_before_steps()

    def parameters(self, module: nn.Module) -> Iterable[tuple[str, torch.Tensor]]:
        """Return the module's own."""
        return module.named_parameters(recurse=False)

    def set(self, name: str, p: torch.Tensor) -> None:
        """Mark one parameter."""
        setattr(p, _RECIPE, self.recipe)

    def __reduce__(self) -> tuple[Any, ...]:
        """Return what copies and pickles are made of."""
        return Prepared, (self.module(), self.recipe)


def recipe_of(p: torch.Tensor) -> Recipe | None:
    """Return the recipe that a parameter's model was prepared with; None if it was not, or is not known."""
    _find_marks(p)
    return getattr(p, _RECIPE, None)


def is_narrow(p: torch.Tensor) -> bool:
    """Whether a parameter was made narrow when its model was prepared."""
    _find_marks(p)
    return getattr(p, _NARROW, False)


def take_wide(p: torch.Tensor) -> torch.Tensor | None:
    """Return what a parameter was before, once; None where that is not known. The whole, of a sharded one."""
    _find_marks(p)
    wide, name = p.__dict__.pop(_WIDE, ({}, ""))
    found: torch.Tensor | None = wide.pop(name, None)
    return found
