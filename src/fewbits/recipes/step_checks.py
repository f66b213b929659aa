"""Whether a prepared model, its optimizer, its loss scaler and its schedule follow one recipe.

Each of them implements a part of a recipe. If one is missing nothing fails, but training does not follow the
recipe. The first step of every optimizer, torch's own too, therefore checks the parameters that it updates.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from functools import cache
from typing import Any
from weakref import WeakKeyDictionary, ref

import torch
from torch import nn
from torch.optim.optimizer import register_optimizer_step_pre_hook

from fewbits.errors import ArgumentError
from fewbits.recipes.parameter_marks import Marks, find_marks
from fewbits.recipes.recipe import Recipe

# The fields of a recipe that an optimizer implements.
STORED = ("parameter", "has_master", "master", "update", "held_gradient", "first_moment", "second_moment")

_RECIPE = "fewbits_recipe"
_SCHEDULE = "fewbits_schedule"  # of a parameter, in a :class:`_Running`
_STEPS: WeakKeyDictionary[torch.optim.Optimizer, int] = WeakKeyDictionary()  # checked steps of each optimizer


class _Running:
    """Refers to the schedule of a model and does not keep it alive; copies and pickles refer to none."""

    def __init__(self, schedule: Any = None) -> None:
        self._schedule = None if schedule is None else ref(schedule)

    def __call__(self) -> Any:
        """Return the schedule; None if it is gone."""
        return None if self._schedule is None else self._schedule()

    def __reduce__(self) -> tuple[Any, ...]:
        """Return what copies and pickles are made of: a schedule changes the layers of the original."""
        return _Running, ()


class PreparedParameters(Marks):
    """Says what recipe the parameters of a module follow.

    Args:
        module: whose own parameters are meant.
        recipe: that the model was prepared with.
    """

    attribute = _RECIPE

    def __init__(self, module: nn.Module, recipe: Recipe) -> None:
        self.recipe = recipe
        self.schedule: _Running | None = None  # of copies none
        super().__init__(module)
        look_before_steps()

    def parameters(self, module: nn.Module) -> Iterable[tuple[str, torch.Tensor]]:
        """Return the module's own."""
        return module.named_parameters(recurse=False)

    def set(self, name: str, p: torch.Tensor) -> None:
        """Mark one parameter."""
        setattr(p, _RECIPE, self.recipe)
        if self.schedule is not None:
            setattr(p, _SCHEDULE, self.schedule)

    def __reduce__(self) -> tuple[Any, ...]:
        """Return what copies and pickles are made of."""
        return PreparedParameters, (self.module(), self.recipe)


def recipe_of(p: torch.Tensor) -> Recipe | None:
    """Return the recipe that a parameter's model was prepared with; None if it was not, or is not known."""
    find_marks(p)
    return getattr(p, _RECIPE, None)


def note_schedule(model: nn.Module, schedule: object) -> None:
    """Note that a schedule changes the formats of a prepared model; its ``step`` counts updates.

    Modules note it beside their recipe, for parameters that take the place of those that are there.
    """
    for _, prepared in prepared_parts(model):
        prepared.schedule = _Running(schedule)
    for p in model.parameters():
        setattr(p, _SCHEDULE, _Running(schedule))


def prepared_parts(model: nn.Module) -> Iterator[tuple[str, PreparedParameters]]:
    """Yield the modules of a model that were prepared: the name of each, and what its parameters follow."""
    for name, module in model.named_modules():
        prepared = getattr(module, "fewbits_prepared", None)
        if isinstance(prepared, PreparedParameters):
            yield name, prepared


@cache
def look_before_steps() -> None:
    """Let the first step of every optimizer compare what it was given with the recipe of its parameters."""
    register_optimizer_step_pre_hook(_look)


def _look(optimizer: torch.optim.Optimizer, *_: Any) -> None:
    """Compare in the first step; in the second, see that the schedule was called after the first."""
    if torch.compiler.is_compiling():
        return
    steps = _STEPS.get(optimizer, 0)
    if steps > 1:
        return
    by_recipe: dict[Recipe, torch.Tensor] = {}
    for p in (p for group in optimizer.param_groups for p in group["params"]):
        recipe = recipe_of(p)
        if recipe is not None:
            by_recipe.setdefault(recipe, p)
    for recipe, p in by_recipe.items():
        _check_stored(recipe, optimizer)
        _check_scaled(recipe, optimizer)
        _check_scheduled(recipe, getattr(p, _SCHEDULE, None), steps)
    _STEPS[optimizer] = steps + 1


def _check_stored(recipe: Recipe, optimizer: torch.optim.Optimizer) -> None:
    own = getattr(optimizer, "recipe", None)
    kind = type(optimizer).__name__
    said = f"the model was prepared with recipe {recipe.name!r}"
    if isinstance(own, Recipe):
        differ = [field for field in STORED if getattr(own, field) != getattr(recipe, field)]
        if differ:
            raise ArgumentError(
                f"{said}, and {kind} was made with recipe={own.name!r}: they differ in"
                f" {', '.join(differ)}; write {kind}(model.parameters(), ..., recipe={recipe.name!r})"
            )
        return
    plain = Recipe("")
    stored = [field for field in STORED if getattr(recipe, field) != getattr(plain, field)]
    if stored:
        raise ArgumentError(
            f"{said}, whose {', '.join(stored)} {type(optimizer).__module__}.{kind} does not know; write"
            f" fewbits.optim.AdamW(model.parameters(), ..., recipe={recipe.name!r}), or SGD or LARS of there"
        )


def _check_scaled(recipe: Recipe, optimizer: torch.optim.Optimizer) -> None:
    if recipe.scaling is None or hasattr(optimizer, "found_inf") or _called_by_scaler():
        return
    raise ArgumentError(
        f"the model was prepared with recipe {recipe.name!r}, which scales the loss ({recipe.scaling}), and"
        f" no loss scaler takes this step; write scale = fewbits.optim.scaler({recipe.name!r}), then"
        " scale.scale(loss).backward(), scale.step(optimizer) and scale.update(), or prepare with"
        f" {_with(recipe, 'scaling=none')!r}"
    )


def _called_by_scaler() -> bool:
    """Whether a loss scaler of torch is on the call stack: it leaves no trace on an optimizer of torch."""
    frame = sys._getframe()
    while frame.f_back is not None:
        frame = frame.f_back
        caller = frame.f_locals.get("self")
        if isinstance(caller, torch.amp.GradScaler):
            return caller.is_enabled()
    return False


def _check_scheduled(recipe: Recipe, reference: _Running | None, steps: int) -> None:
    if not recipe.schedule:
        return
    said = f"the model was prepared with recipe {recipe.name!r}, whose formats change while it trains, and"
    schedule = None if reference is None else reference()
    if schedule is None:
        raise ArgumentError(
            f"{said} nothing changes them; write schedule = fewbits.train.schedule(model, {recipe.name!r},"
            " steps), and call its after_backward() and after_step() in the loop, or prepare with"
            f" {_with(recipe, 'schedule=')!r}"
        )
    if steps and not schedule.step:
        raise ArgumentError(f"{said} its schedule was not told of the first step; call schedule.after_step()")


def _with(recipe: Recipe, change: str) -> str:
    return f"{recipe.name}{',' if ':' in recipe.name else ':'}{change}"
