"""What a prepared model tells an optimizer about its parameters: which are narrow, what they were."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any
from weakref import ref

if TYPE_CHECKING:
    import torch

    from fewbits.recipes.recipe import Recipe

_NARROW = "fewbits_narrow"
_WIDE = "fewbits_wide"
_RECIPE = "fewbits_recipe"


class Narrowed:
    """Marks the parameters of a layer, and kept by the layer, the copies of them.

    A copy of a parameter has none of its attributes. The copy of a layer copies this too, which marks anew.

    Args:
        parameters: those that are narrow.
        wide: what each was before, for a master copy; None where nobody asks.
    """

    def __init__(self, parameters: Sequence[torch.Tensor], wide: Sequence[torch.Tensor | None]) -> None:
        self.parameters = parameters
        for p, before in zip(parameters, wide, strict=True):
            setattr(p, _NARROW, True)
            if before is not None:
                setattr(p, _WIDE, before)

    def __reduce__(self) -> tuple[Any, ...]:
        """Return what copies and pickles are made of."""
        return Narrowed, (self.parameters, [getattr(p, _WIDE, None) for p in self.parameters])


class Prepared:
    """Marks the parameters of a module with the recipe of their model, and the copies of them.

    It holds none of them: a parameter that something else takes the place of is free to go.

    Args:
        parameters: the module's own.
        recipe: that the model was prepared with.
    """

    def __init__(self, parameters: Sequence[torch.Tensor], recipe: Recipe) -> None:
        from fewbits.recipes.agreement import look_before_steps

        self.parameters, self.recipe = [ref(p) for p in parameters], recipe
        for p in parameters:
            setattr(p, _RECIPE, recipe)
        look_before_steps()

    def __reduce__(self) -> tuple[Any, ...]:
        """Return what copies and pickles are made of."""
        return Prepared, ([p for one in self.parameters if (p := one()) is not None], self.recipe)


def recipe_of(p: torch.Tensor) -> Recipe | None:
    """Return the recipe that a parameter's model was prepared with; None if it was not, or is not known."""
    return getattr(p, _RECIPE, None)


def is_narrow(p: torch.Tensor) -> bool:
    """Whether a parameter was made narrow when its model was prepared."""
    return getattr(p, _NARROW, False)


def take_wide(p: torch.Tensor) -> torch.Tensor | None:
    """Return what a parameter was before, once; None where that is not known."""
    wide: torch.Tensor | None = p.__dict__.pop(_WIDE, None)
    return wide
