"""How an update is added to a parameter that is narrow, and what pays back the rounding.

Updates below half a unit in the last place vanish when they are rounded to nearest. A wide master copy
(Micikevicius et al., Mixed Precision Training, 2018, section 3.1), stochastic rounding or Kahan's sum
(Zamirai et al., Revisiting BFloat16 Training, 2020, section 4) keep them.
"""

from __future__ import annotations

import torch

from fewbits.kernels.ops.sharding import gathered
from fewbits.optim.packing import pack, round_values, torch_dtype, unpack
from fewbits.optim.parameter_state import ParameterState
from fewbits.optim.sharded import local, of_one
from fewbits.recipes import Recipe, RoleFormat
from fewbits.recipes.parameter_marks import is_rounded, take_unrounded

_ROUNDED_INTO = "fewbits_master_rounded_into"  # of a parameter into which a step has rounded its master copy


def current(p: torch.Tensor, state: ParameterState, recipe: Recipe) -> torch.Tensor:
    """Return the float32 values that an update is added to: the master's, where there is one.

    What was written into a parameter after the last step is its master's value, too.
    """
    target = parameter_format(p, recipe)
    if target is None or not recipe.has_master:
        return p.detach().float()
    if "master" not in state:
        state["master"] = pack(_before(p, recipe), recipe.master)
    master = unpack(state["master"], p)
    # A master that a checkpoint brings stands until the first step, and one that is rounded at random always.
    if not hasattr(p, _ROUNDED_INTO) or target.rounding == "stochastic":
        return master
    # Values tell what was written: versions do not count what goes through p.data or NumPy.
    return _where_rounded(master, p.detach().float(), target, master)


def add_(
    p: torch.Tensor, values: torch.Tensor, update: torch.Tensor, state: ParameterState, recipe: Recipe
) -> None:
    """Add a float32 ``update`` to a parameter whose :func:`current` values are ``values``."""
    target = parameter_format(p, recipe)
    if target is None:
        p.copy_(values + update)
    elif recipe.has_master:
        state["master"] = pack(values + update, recipe.master)
        p.copy_(round_values(unpack(state["master"], p), target))
        setattr(p, _ROUNDED_INTO, True)
    elif recipe.update == "kahan":
        _add_compensated_(p, values, update, state, target)
    else:
        p.copy_(
            round_values(values + update, target, "stochastic" if recipe.update == "stochastic" else None)
        )


def _add_compensated_(
    p: torch.Tensor, values: torch.Tensor, update: torch.Tensor, state: ParameterState, target: RoleFormat
) -> None:
    """Kahan's sum with every operation rounded to the parameter's format.

    A compensation stands where the parameter is what it was left by: the sum without the loss rounds to it.
    Of an update beyond the parameter Kahan's loss may be a whole step of it, and is dropped, too.
    """
    lost = unpack(state["compensation"], values) if "compensation" in state else torch.zeros_like(values)
    if target.rounding != "stochastic":
        lost = _where_rounded(values - lost, values, target, lost, torch.zeros_like(values))
    y = round_values(update - lost, target)
    total = round_values(values + y, target)
    state["compensation"] = pack(round_values(round_values(total - values, target) - y, target), target)
    p.copy_(total)


def _where_rounded(
    x: torch.Tensor,
    values: torch.Tensor,
    target: RoleFormat,
    kept: torch.Tensor,
    other: torch.Tensor | None = None,
) -> torch.Tensor:
    """Return ``kept`` where ``x`` rounds to ``values``, and elsewhere ``other``; None: the values."""
    found = torch.where(round_values(x, target) == values, kept, values if other is None else other)
    return of_one(local(found), values)  # rounding gathers a tensor whose shards would cut blocks


def parameter_format(p: torch.Tensor, recipe: Recipe) -> RoleFormat | None:
    """Return the format in which a parameter is held; None for one that the recipe leaves wide."""
    target = recipe.parameter
    if target is None:
        return None
    dtype = torch_dtype(target)
    # A float32 parameter among 16-bit ones was excluded when the model was prepared, or belongs to a norm.
    return target if (is_rounded(p) if dtype is None else dtype == p.dtype) else None


def _before(p: torch.Tensor, recipe: Recipe) -> torch.Tensor:
    """Return the float32 values of a parameter before it was rounded, or its own if those are unknown."""
    own, before = p.detach().float(), take_unrounded(p)
    if before is not None and not before.is_meta:
        before = of_one(before.to(p.device, torch.float32), p)
        target = parameter_format(p, recipe)
        if target is not None:
            # If nobody has set the parameter since it was rounded; chosen on its device.
            same = gathered((round_values(before, target) == own).all())
            return of_one(torch.where(same, local(before), local(own)), p)
    return own.clone()
